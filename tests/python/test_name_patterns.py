"""Name patterns: what re and fnmatch say, in bounded time for hostile ones."""

from __future__ import annotations

import contextlib
import fnmatch
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_ple.errors import ConfigError
from ngram_ple.name_patterns import NamePatterns, UnsupportedPatternError

NAME = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding"

PIECES = st.sampled_from([*"ab.1", r"\.", r"\d", r"\w", "[ab]", "[^a]", "[]a]", ".", "^", "$", "()", "(a|)"])
REGEX = st.recursive(
    PIECES,
    lambda inner: (
        st.lists(inner, max_size=3).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
        | inner.map(lambda text: f"(?:{text})*")
        | inner.map(lambda text: f"(?:{text})+?")
        | inner.map(lambda text: f"(?:{text})?")
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(REGEX, st.text("ab.1", max_size=8))
def test_as_re(pattern: str, name: str) -> None:
    assert NamePatterns().regex(pattern, name) == (re.match(pattern, name) is not None)


@settings(max_examples=300, deadline=None)
@given(st.text("ab*?[]!-", max_size=8), st.text("ab!]", max_size=8))
def test_as_fnmatch(pattern: str, name: str) -> None:
    try:
        found = NamePatterns().glob(pattern, name)
    except ConfigError:
        return  # fnmatch takes a set that runs backwards for an empty one
    assert found == fnmatch.fnmatchcase(name, pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a*)*b",
        "(.*)*x",
        "(.|.)*x",
        "(.+.+)+x",
        ".*" * 500 + "x",
        "((" * 15 + "a" + ")*)*" * 15 + "x",
        "(" * 38 + "a" + ")*" * 38,
        ("(" + "|".join(["a"] * 50) + ")*") * 20 + "b",
        "a?" * 2000 + "x",
        "[a-z]*" * 300 + "1",
    ],
)
def test_hostile_patterns_end(pattern: str) -> None:
    begin = time.process_time()
    for name in (NAME, "a" * 2000):
        with contextlib.suppress(ConfigError, UnsupportedPatternError):
            NamePatterns().regex(pattern, name)
    for glob in (pattern, "*a" * 3000 + "b", "[" * 4000, "*" * 10_000):
        with contextlib.suppress(ConfigError):
            NamePatterns().glob(glob, "a" * 2000)
    assert time.process_time() - begin < 10  # a second or so each on a slow machine


def test_many_patterns_end() -> None:
    patterns = NamePatterns()

    def match_all() -> None:
        for number in range(100_000):
            patterns.glob(f"*layers.{number}.*mlp*", NAME)

    with pytest.raises(ConfigError, match="must be quick to match, got too many or too long ones") as caught:
        match_all()
    assert len(str(caught.value)) < 400


def test_published_lists_are_far_from_the_bound() -> None:
    patterns = NamePatterns()
    for layer in range(200):
        for pattern in ("*.layers.{}.self_attn*", "model.layers.{}.mlp.gate*", "*lm_head"):
            assert not patterns.glob(pattern.format(layer), NAME)
        assert not patterns.regex(rf".*layers\.{layer}\.(self_attn|linear_attn)\..*_proj$", NAME)


@pytest.mark.parametrize(
    "pattern", ["(?=a)a", "(?!x).*", r"(a)\1", "a{2}", r"\ba", "(?i)A", "(" * 60 + ")" * 60]
)
def test_outside_the_subset(pattern: str) -> None:
    with pytest.raises(UnsupportedPatternError):
        NamePatterns().regex(pattern, NAME)


@pytest.mark.parametrize("pattern", ["(", ")", "a)", "[", "[a", "[b-a]", "*", "a**", "+a", "a|*", "\\", "(a"])
def test_malformed(pattern: str) -> None:
    with pytest.raises(ConfigError, match="unreadable"):
        NamePatterns().regex(pattern, NAME)
