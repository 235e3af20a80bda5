"""What the suites of rules have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import takewhile, zip_longest
from typing import Any

from rxllm.values._response import shorten

LINES = 15
"""Lines of a failure; beyond them a broken rule has one each."""

WIDTH = 100
"""Characters shown of a value."""


def chosen(rules: dict[str, str], only: Collection[str] | None, without: Collection[str]) -> dict[str, str]:
    """The rules to check, by name. Raises ``ValueError`` for a name that is none of theirs."""
    if unknown := sorted({*(only or ()), *without} - set(rules)):
        raise ValueError(f"no such rule: {', '.join(unknown)}; there are {', '.join(rules)}")
    return {name: rules[name] for name in rules if name not in without and (only is None or name in only)}


def check(
    sentences: dict[str, str], rules: dict[str, Callable[[Any], None]], without: Collection[str], given: Any
) -> None:
    """Raises one ``AssertionError`` for all the `rules` that `given` breaks; `sentences` say what each of them is."""
    __tracebackhide__ = True
    broken: list[str] = []
    for name, sentence in chosen(sentences, None, without).items():
        try:
            rules[name](given)
        except AssertionError as error:
            broken.append(f"{name}: {sentence}, but {error}")
    if broken:
        raise AssertionError(on_a_screen(broken))


def expect(condition: bool, why: str, cause: BaseException | None = None) -> None:
    """Raises ``AssertionError``, which says how a rule is broken, unless it is kept."""
    __tracebackhide__ = True
    if not condition:
        raise AssertionError(why) from cause


def expect_same(
    what: str, expected: Sequence[Any], actual: Sequence[Any], key: Callable[[Any], Any] = lambda item: item
) -> None:
    """Raises ``AssertionError``, which shows the first place where the two differ by `key`, if there is one."""
    __tracebackhide__ = True
    for index, (wanted, found) in enumerate(zip_longest(expected, actual, fillvalue=_END)):
        if key(wanted) != key(found):
            left, right = _shown(repr(wanted), repr(found))
            raise AssertionError(f"{what} differs at index {index}:\n    expected  {left}\n    actual    {right}")


class _End:
    def __repr__(self) -> str:
        return "the end"


_END = _End()


def _shown(*texts: str) -> list[str]:
    """The texts from shortly before the place where they differ."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    begin = max(0, alike - WIDTH // 2)
    return [shorten("…" * (begin > 0) + text[begin:], WIDTH) for text in texts]


def clip(value: Any) -> str:
    """`value` as a failure shows it."""
    return shorten(repr(value), WIDTH)


def on_a_screen(broken: Sequence[str]) -> str:
    """The broken rules' messages, the later ones cut to one line where all would be more than `LINES`."""
    lines: list[str] = []
    for index, message in enumerate(broken, 1):
        first, *rest = message.splitlines()
        fits = len(lines) + 1 + len(rest) + len(broken) - index <= LINES
        lines += [shorten(first, 3 * WIDTH), *(rest if fits else ())]
    return "\n".join(lines)
