"""Cases, timers and pictures of the operators, for ``ngram-ple bench`` and the programs in ``bench/``."""
