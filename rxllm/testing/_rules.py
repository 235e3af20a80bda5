"""What the suites of rules have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any


def chosen(rules: dict[str, str], only: Collection[str] | None, without: Collection[str]) -> dict[str, str]:
    """The rules to check, by name. Raises ``ValueError`` for a name that is none of theirs."""
    if unknown := sorted({*(only or ()), *without} - set(rules)):
        raise ValueError(f"no such rule: {', '.join(unknown)}; there are {', '.join(rules)}")
    return {name: rules[name] for name in rules if name not in without and (only is None or name in only)}


def check(
    sentences: dict[str, str], rules: dict[str, Callable[[Any], None]], without: Collection[str], given: Any
) -> None:
    """Raises one ``AssertionError`` for all the `rules` that `given` breaks; `sentences` say what each of them is."""
    broken: list[str] = []
    for name, sentence in chosen(sentences, None, without).items():
        try:
            rules[name](given)
        except AssertionError as error:
            broken.append(f"{name}: {sentence}, but {error}")
    if broken:
        raise AssertionError("\n".join(broken))


def expect(condition: bool, why: str) -> None:
    """Raises ``AssertionError``, which says how a rule is broken, unless it is kept."""
    if not condition:
        raise AssertionError(why)
