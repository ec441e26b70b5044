"""``python -m ngram_ple`` is the ``ngram-ple`` command."""

import sys

from ngram_ple.cli import main

if __name__ == "__main__":
    sys.exit(main())
