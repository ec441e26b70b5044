"""The fuzzer's corpus, and what simple mutations make of it; `make fuzz` goes on from there."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
sys.path.insert(0, str(FUZZ))

from targets import TARGETS, Workplace  # noqa: E402

MUTATED = 150


@pytest.fixture(scope="module")
def place() -> Iterator[Workplace]:
    place = Workplace()
    for name in TARGETS:
        place.run(name, b"")  # what is imported or allocated once
    yield place
    place.remove()


def corpus(name: str) -> list[bytes]:
    return [file.read_bytes() for file in sorted((FUZZ / "corpus" / name).iterdir())]


def mutated(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(changed))
        kind = rng.randrange(4)
        if kind == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del changed[at : at + rng.randint(1, 8)]
        elif kind == 2:
            changed[at:at] = rng.choice(
                [b'"', b"{", b"[", b",", b"9" * 30, b"-1", b"null", b"\xff", b"\\u0000"]
            )
        else:
            begin = rng.randint(0, len(changed))
            changed[at:at] = changed[begin : begin + 40]
    return bytes(changed)


@pytest.mark.parametrize("name", TARGETS)
def test_corpus(name: str, place: Workplace) -> None:
    results = [place.run(name, data) for data in corpus(name)]
    assert len(results) >= 5
    assert any(results)
    assert not all(results)


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_of_the_corpus(name: str, place: Workplace) -> None:
    rng = random.Random(name)
    seeds = corpus(name)
    for _ in range(MUTATED):
        place.run(name, mutated(rng.choice(seeds), rng))
