"""Regular expressions that could take more than linear time: ``python -m tests.patterns`` prints them.

A pattern is turned into an automaton whose states are the pattern's characters (Glushkov's construction). It is slow if
the same text can lead to two places that both repeat: then the matcher tries each way to divide the text between them
before it fails. Where the pattern is searched for, the place where a match begins is a repetition of its own.

Repetitions of at most 2,000 characters are no worse than a text of 2,000 characters, and count as one.
"""

from __future__ import annotations

import ast
import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CLIPPED = 2_000
SEARCHES = {"search", "sub", "subn", "split", "findall", "finditer"}
_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}
_SAMPLE = "".join(map(chr, range(128))) + "\x85\xa0éß²٣中あ。\u2028\U0001f600"
_BEGINNING = "\ue000"
"""Stands for the beginning of the text."""


@dataclass
class Part:
    """A part of a pattern: the places where it begins and ends, and whether it may be empty.

    Behind an assertion a match may still fail: then `certain`, the ends at which it cannot, has fewer places than
    `last`, and `is_certain` is false where `is_empty` is true.
    """

    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    certain: set[int] = field(default_factory=set)
    is_empty: bool = True
    is_certain: bool = True


class Automaton:
    def __init__(self, pattern: re.Pattern[Any], how: str) -> None:
        text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
        self._flags = pattern.flags
        self._alphabet = {*_SAMPLE, *text}
        self.chars: list[set[str]] = []
        self.follow: list[set[int]] = []
        self.atoms: list[tuple[int, ...]] = []
        self._atom: tuple[int, ...] = ()
        self._doubled: set[int] = set()
        start = self._add({*self._alphabet}) if how in SEARCHES else None
        whole = self._sequence(parser.parse(text, self._flags & ~re.UNICODE), True)
        self.certain = set[int]() if how == "fullmatch" else whole.certain
        if start is not None:
            self.follow[start] |= {start, *whole.first}

    def slow(self) -> bool:
        """Whether some text can be read in a number of ways that grows with its length."""
        reach = [self._reachable(state) for state in range(len(self.chars))]
        loops = [state for state in range(len(self.chars)) if state in reach[state]]
        groups = {
            state: {other for other in loops if other in reach[state] and state in reach[other]} for state in loops
        }
        return not self._doubled <= self.certain or any(
            end in reach[begin] and not self._is_harmless(begin, end) and self._is_ambiguous(begin, end, groups)
            for begin in loops
            for end in loops
            if begin != end
        )

    def _is_harmless(self, begin: int, end: int) -> bool:
        leaves_atom = self.atoms[begin] != self.atoms[end][: len(self.atoms[begin])]
        return end in self.certain or leaves_atom

    def _is_ambiguous(self, begin: int, end: int, groups: dict[int, set[int]]) -> bool:
        pending, seen = [(begin, begin, end)], set[tuple[int, int, int]]()
        while pending:
            one, two, three = pending.pop()
            for a in self.follow[one] & groups[begin]:
                for c in self.follow[three] & groups[end]:
                    if not (shared := self.chars[a] & self.chars[c]):
                        continue
                    for b in self.follow[two]:
                        state = (a, b, c)
                        if state in seen or not shared & self.chars[b]:
                            continue
                        if state == (begin, end, end):
                            return True
                        seen.add(state)
                        pending.append(state)
        return False

    def _reachable(self, state: int) -> set[int]:
        pending, seen = [state], set[int]()
        while pending:
            new = self.follow[pending.pop()] - seen
            seen |= new
            pending += new
        return seen

    def _add(self, chars: set[str]) -> int:
        if self._flags & re.IGNORECASE:
            chars = {char for char in self._alphabet if {char.lower(), char.upper()} & chars} | chars
        self.chars.append(chars)
        self.follow.append(set())
        self.atoms.append(self._atom)
        return len(self.chars) - 1

    def _one(self, chars: set[str]) -> Part:
        state = self._add(chars)
        return Part({state}, {state}, {state}, False, False)

    def _sequence(self, items: Any, is_first: bool) -> Part:
        whole = Part()
        for item in items:
            part = self._item(*item, is_first)
            is_first = is_first and part.is_empty
            for state in whole.last:
                self.follow[state] |= part.first
            whole = Part(
                whole.first | part.first if whole.is_empty else whole.first,
                whole.last | part.last if part.is_empty else part.last,
                whole.certain | part.certain if part.is_certain else part.certain,
                whole.is_empty and part.is_empty,
                whole.is_certain and part.is_certain,
            )
        return whole

    def _item(self, kind: Any, value: Any, is_first: bool) -> Part:
        if kind in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN, sre.CATEGORY):
            return self._one(self._chars_of(kind, value))
        if kind is sre.SUBPATTERN:
            return self._sequence(value[3], is_first)
        if kind is sre.ATOMIC_GROUP:
            return self._atomic(value, is_first)
        if kind is sre.BRANCH:
            parts = [self._sequence(branch, is_first) for branch in value[1]]
            first, last, certain = (
                set[int]().union(*(getattr(part, name) for part in parts)) for name in ("first", "last", "certain")
            )
            return Part(first, last, certain, any(p.is_empty for p in parts), any(p.is_certain for p in parts))
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            least, most, body = value
            part = self._atomic(body, is_first) if kind is sre.POSSESSIVE_REPEAT else self._sequence(body, is_first)
            if most > CLIPPED:
                for state in part.last:
                    if self.follow[state] & part.first and self.atoms[state] == self._atom:
                        self._doubled.add(state)  # the body repeats itself already
                    self.follow[state] |= part.first
            return replace(part, is_empty=part.is_empty or not least, is_certain=part.is_certain or not least)
        if kind is sre.AT and value in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
            is_line = value is sre.AT_BEGINNING and self._flags & re.MULTILINE
            return self._one({"\n"} if is_line else {_BEGINNING}) if is_first else Part(is_certain=False)
        if kind in (sre.ASSERT, sre.ASSERT_NOT) and value[0] < 0 and is_first:
            return self._looks_behind(kind, value[1])
        if kind in (sre.ASSERT, sre.ASSERT_NOT) and value[0] > 0:
            return Part(self._sequence(value[1], False).first, is_certain=False)
        return Part(is_certain=False)  # a place in the text, a group that is repeated

    def _atomic(self, body: Any, is_first: bool) -> Part:
        before, self._atom = self._atom, (*self._atom, len(self.chars))
        part = self._sequence(body, is_first)
        self._atom = before
        return part

    def _looks_behind(self, kind: Any, body: Any) -> Part:
        if kind is sre.ASSERT:
            return self._sequence(body, True)
        if len(body) == 1 and body[0][0] in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            return self._one(self._alphabet - self._chars_of(*body[0]))
        return Part(is_certain=False)

    def _chars_of(self, kind: Any, value: Any) -> set[str]:
        if kind is sre.LITERAL:
            return {chr(value)}
        if kind is sre.NOT_LITERAL:
            return self._alphabet - {chr(value)}
        if kind is sre.ANY:
            return self._alphabet - (set() if self._flags & re.DOTALL else {"\n"})
        if kind is sre.RANGE:
            return {char for char in self._alphabet if value[0] <= ord(char) <= value[1]}
        if kind is sre.CATEGORY:
            return {char for char in self._alphabet if re.match(_CATEGORIES[value], char, self._flags & re.ASCII)}
        is_negated = value[0][0] is sre.NEGATE
        chars = set[str]().union(*(self._chars_of(*item) for item in value if item[0] is not sre.NEGATE))
        return self._alphabet - chars if is_negated else chars


@cache
def is_slow(pattern: re.Pattern[Any], how: str) -> bool:
    """Whether `pattern`, used with the function `how` of `re`, can take more than linear time."""
    return Automaton(pattern, how).slow()


@dataclass(frozen=True)
class Use:
    """A call of a function of `re`: where it stands, and the pattern, or its source if only a run can tell it."""

    path: str
    name: str
    how: str
    pattern: re.Pattern[Any] | None


def uses(path: Path) -> Iterator[Use]:
    """Yield the patterns of a file. A named one counts as searched for, unless the file only matches it."""
    source = path.read_text()
    if "re." not in source:
        return
    tree, name = ast.parse(source), str(path.relative_to(ROOT))
    methods: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=constant), attr=how):
                methods.setdefault(constant, set()).add(how)
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=constant)], value=ast.Call(func=ast.Attribute(ast.Name("re"), "compile"))
            ):
                hows = methods.get(constant, set()) & (SEARCHES | {"match", "fullmatch"})
                pattern = getattr(import_module(_module(name)), constant)
                for how in hows or SEARCHES & {"search"}:
                    yield Use(name, constant, how, pattern)
            case ast.Call(func=ast.Attribute(ast.Name("re"), how), args=[pattern, *_]) if how in SEARCHES | {
                "match",
                "fullmatch",
            }:
                text = ast.literal_eval(pattern) if isinstance(pattern, ast.Constant) else None
                yield Use(name, ast.unparse(pattern), how, None if text is None else re.compile(text, _flags(node)))


def _flags(call: ast.Call) -> int:
    text = " ".join(ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "flags")
    return sum(getattr(re, flag) for flag in ("IGNORECASE", "MULTILINE", "DOTALL") if flag in text)


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def all_uses() -> list[Use]:
    return [use for path in sorted((ROOT / "rxllm").rglob("*.py")) for use in uses(path)]


def main() -> None:
    for use in all_uses():
        if use.pattern is None or is_slow(use.pattern, use.how):
            print(f"{use.path}: {use.name}: {use.how}: {'unknown' if use.pattern is None else use.pattern.pattern!r}")


if __name__ == "__main__":
    main()
