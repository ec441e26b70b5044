"""Inputs for the tests of the command line: a tokenizer of words, a text of them, a checkpoint."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from checkpoints import Source, make_source, small_config
from ngram_ple.hash_plan import HashPlan
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

VOCAB = small_config().vocab_size
EOS = small_config().eos_token_id


def write_tokenizer(path: Path, vocab_size: int = VOCAB) -> Path:
    """Word ``w12`` is token 12, unknown words token 0. It truncates and pads, which commands must undo."""
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(vocab_size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(path))
    return path


def some_requests(count: int = 40, seed: int = 0) -> list[list[int]]:
    """Requests of 1 to 30 tokens, EOS among them often."""
    rng = random.Random(seed)
    token = lambda: EOS if rng.random() < 0.15 else rng.randrange(VOCAB)  # noqa: E731
    return [[token() for _ in range(rng.randint(1, 30))] for _ in range(count)]


def write_text(path: Path, requests: list[list[int]]) -> Path:
    """Paragraphs of several lines, with blank lines of every kind between them."""
    paragraphs = ["\n".join(f"w{token}" for token in request) for request in requests]
    path.write_text("\n \n\t\n\n".join(paragraphs) + "\n\n", newline="")
    return path


@dataclass(frozen=True)
class Inputs:
    """What ``embed`` reads, and what it was made from."""

    folder: Path
    checkpoint: Path
    text: Path
    tokenizer: Path
    source: Source
    requests: list[list[int]]

    def arguments(self, out: Path, *more: str) -> list[str]:
        """Return an ``embed`` command line."""
        files = ["--text", self.text, "--tokenizer", self.tokenizer, "--out", out]
        return ["embed", str(self.checkpoint), *map(str, files), *more]


def make_inputs(folder: Path, format: str = "bf16") -> Inputs:
    """Write a checkpoint of `format` and a text for it."""
    source = make_source(format, HashPlan.from_config(small_config()).padded_rows)
    requests = some_requests()
    return Inputs(
        folder,
        source.write(folder / "checkpoint"),
        write_text(folder / "text.txt", requests),
        write_tokenizer(folder / "tokenizer.json"),
        source,
        requests,
    )


def flat(requests: list[list[int]]) -> list[int]:
    """Return the requests' tokens one after another."""
    return [token for request in requests for token in request]
