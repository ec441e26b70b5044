"""Globs and regular expressions that strangers wrote, matched against module names in bounded time.

Python's `re` backtracks, and a pattern in a config.json could keep it busy for ever. Here a pattern becomes a
small program whose threads advance together, a character at a time (Thompson's construction), and every step
is taken from a budget.
"""

from __future__ import annotations

import re
import warnings
from typing import NamedTuple

from ngram_ple.errors import ConfigError, shown

_STEPS = 500_000  # some tenths of a second
_CLASS_STEPS = 200  # what compiling a set of characters costs, in steps
_MAX_DEPTH = 40

_IN_SET = re.compile(r"[\\\[\]^&~|]")  # what a set of re gives a meaning, and one of a glob does not
_BACKSLASHED = r"\\\g<0>"
_WILD = re.compile(r"[*?\[]")
_SETS = frozenset("dDwWsS")


class UnsupportedPatternError(Exception):
    """A regular expression outside the subset: look-around, back reference, counted repeat and their like."""


class _Op(NamedTuple):
    """An instruction; jumps are relative to it."""

    kind: str  # char, any, set, split, jump, begin, end, match
    char: str = ""
    chars: re.Pattern[str] | None = None
    first: int = 1
    second: int = 1


_ANY = _Op("any")
_MATCH = _Op("match")


class NamePatterns:
    """Matches patterns, all of them from one budget of steps.

    Raises
    ------
    ConfigError
        From every method: the budget is spent.
    """

    def __init__(self, steps: int = _STEPS) -> None:
        self._left = steps

    def glob(self, pattern: str, name: str) -> bool:
        """Whether a glob (``*``, ``?``, ``[…]``, ``[!…]``, as in fnmatch) matches the whole name."""
        if not _WILD.search(pattern):
            return pattern == name
        self._spend(len(pattern), pattern)
        code: list[_Op] = []
        at = 0
        while at < len(pattern):
            char = pattern[at]
            end = pattern.find("]", at + 2 + (pattern[at + 1 : at + 2] == "!")) if char == "[" else -1
            if char == "*":
                code += (_Op("split", second=3), _ANY, _Op("jump", first=-2))
            elif char == "?":
                code.append(_ANY)
            elif end > 0:
                inner = pattern[at + 1 : end]
                negated = inner[0] == "!"
                code.append(self._set(f"[{'^' * negated}{_IN_SET.sub(_BACKSLASHED, inner[negated:])}]"))
                at = end
            else:
                code.append(_Op("char", char))
            at += 1
        return self._run([*code, _MATCH], name, whole=True, pattern=pattern)

    def regex(self, pattern: str, name: str) -> bool:
        """Whether a regular expression matches a beginning of the name, as `re.match` does.

        Literals, escapes, ``.``, sets, groups, alternatives, ``* + ?`` and their lazy forms, ``^`` and ``$``.

        Raises
        ------
        UnsupportedPatternError
            It has something else.
        ConfigError
            It is malformed.
        """
        self._spend(len(pattern), pattern)
        parser = _Parser(pattern, self)
        code = parser.alternatives(0)
        if parser.at < len(pattern):
            raise parser.malformed("unbalanced parenthesis")
        return self._run([*code, _MATCH], name, whole=False, pattern=pattern)

    def _set(self, text: str) -> _Op:
        self._spend(_CLASS_STEPS, text)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of sets such as [?--]
                return _Op("set", chars=re.compile(text, re.DOTALL))
        except (re.error, OverflowError) as error:
            raise ConfigError(f"quantization_config has the unreadable set {shown(text)}: {error}") from None

    def _spend(self, steps: int, pattern: str) -> None:
        self._left -= steps
        if self._left < 0:
            raise ConfigError(
                f"the patterns of quantization_config must be quick to match, got too many or too long ones, "
                f"the last one {shown(pattern)}"
            )

    def _run(self, code: list[_Op], text: str, whole: bool, pattern: str) -> bool:
        threads = self._closure(code, [0], 0, len(text), pattern)
        for at, char in enumerate(text):
            if not threads or (not whole and any(code[i].kind == "match" for i in threads)):
                break
            moved = [i + 1 for i in threads if _takes(code[i], char)]
            threads = self._closure(code, moved, at + 1, len(text), pattern)
        return any(code[i].kind == "match" for i in threads)

    def _closure(self, code: list[_Op], starts: list[int], at: int, end: int, pattern: str) -> list[int]:
        """Follow everything that takes no character."""
        seen: set[int] = set()
        waiting = []
        todo = starts
        while todo:
            i = todo.pop()
            if i in seen:
                continue
            seen.add(i)
            op = code[i]
            if op.kind == "split":
                todo += (i + op.second, i + op.first)
            elif op.kind == "jump" or (op.kind, at) in (("begin", 0), ("end", end)):
                todo.append(i + op.first)
            else:
                waiting.append(i)
        self._spend(1 + len(seen), pattern)
        return waiting


def _takes(op: _Op, char: str) -> bool:
    if op.kind == "char":
        return op.char == char
    if op.kind == "set":
        return op.chars is not None and op.chars.match(char) is not None
    return op.kind == "any"


class _Parser:
    """Recursive descent over a regular expression; methods return instructions."""

    def __init__(self, pattern: str, patterns: NamePatterns) -> None:
        self.at = 0
        self._pattern = pattern
        self._patterns = patterns

    def malformed(self, why: str) -> ConfigError:
        return ConfigError(
            f"quantization_config has the unreadable pattern {shown('re:' + self._pattern)}: "
            f"{why} at {self.at}"
        )

    def alternatives(self, depth: int) -> list[_Op]:
        if depth > _MAX_DEPTH:
            raise UnsupportedPatternError(f"groups nested more than {_MAX_DEPTH} deep")
        branches = [self._sequence(depth)]
        while self._peek() == "|":
            self.at += 1
            branches.append(self._sequence(depth))
        code = branches.pop()
        while branches:
            first = branches.pop()
            jump = _Op("jump", first=len(code) + 1)
            code = [_Op("split", second=len(first) + 2), *first, jump, *code]
        return code

    def _sequence(self, depth: int) -> list[_Op]:
        code: list[_Op] = []
        while self._peek() not in ("", "|", ")"):
            atom = self._atom(depth)
            sign = self._peek()
            if sign == "{":
                raise UnsupportedPatternError("a counted repeat")
            if sign and sign in "*+?":
                self.at += 1
                atom = _repeated(atom, sign)
                if self._peek() == "?":
                    self.at += 1  # lazy or greedy: the same names match
                elif self._peek() in ("*", "+", "{"):
                    raise self.malformed("multiple repeat")
            code += atom
        return code

    def _atom(self, depth: int) -> list[_Op]:
        char = self._next()
        if char == "(":
            if self._peek() == "?":
                if not self._pattern.startswith("?:", self.at):
                    raise UnsupportedPatternError("a group with ?")
                self.at += 2
            code = self.alternatives(depth + 1)
            if self._peek() != ")":
                raise self.malformed("missing )")
            self.at += 1
            return code
        if char == "[":
            return [self._patterns._set(self._set_text())]
        if char in "*+?":
            raise self.malformed("nothing to repeat")
        if char == "\\":
            return [self._escape()]
        simple = {".": _ANY, "^": _Op("begin"), "$": _Op("end")}
        return [simple.get(char) or _Op("char", char)]

    def _set_text(self) -> str:
        """Text of a set whose ``[`` is behind; the first character may be ``]``."""
        begin = self.at - 1
        self.at += self._peek() == "^"
        first = True
        while first or self._peek() != "]":
            first = False
            if not self._peek():
                raise self.malformed("unterminated set")
            self.at += 2 if self._peek() == "\\" else 1
        self.at += 1
        return self._pattern[begin : self.at]

    def _escape(self) -> _Op:
        char = self._next()
        if not char:
            raise self.malformed("a backslash at the end")
        if char in _SETS:
            return self._patterns._set(f"\\{char}")
        if char in "AZ":
            return _Op("begin" if char == "A" else "end")
        if char.isalnum():
            raise UnsupportedPatternError(f"\\{char}")
        return _Op("char", char)

    def _peek(self) -> str:
        return self._pattern[self.at : self.at + 1]

    def _next(self) -> str:
        char = self._peek()
        self.at += 1
        return char


def _repeated(code: list[_Op], sign: str) -> list[_Op]:
    size = len(code)
    if sign == "+":
        return [*code, _Op("split", first=-size, second=1)]
    if sign == "?":
        return [_Op("split", second=size + 1), *code]
    return [_Op("split", second=size + 2), *code, _Op("jump", first=-(size + 1))]
