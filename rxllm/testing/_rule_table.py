"""Tables of rules: check them on a subject, and report all that are broken on one screen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from typing import Any, TypeVar

from rxllm.values.responses import shorten

C = TypeVar("C", bound=Callable[..., None])

LINES = 15
"""Lines of a report; if it needs more, the later broken rules get one line each."""

WIDTH = 100
"""Characters shown of a value."""


@dataclass(frozen=True)
class BrokenRule:
    """A rule that its subject breaks, how, what its check raised, and the subject's own error if that was the cause."""

    name: str
    message: str
    error: BaseException
    cause: BaseException | None


class RuleTable(dict[str, str]):
    """Rules by name, each with the sentence that states it; `checks` are the functions that check them.

    A check takes the subject, and raises ``AssertionError`` with a text that says how the rule is broken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.checks: dict[str, Callable[[Any], None]] = {}

    def rule(self, name: str, sentence: str) -> Callable[[C], C]:
        """Return a decorator that adds the check of one more rule."""

        def add(check: C) -> C:
            self[name], self.checks[name] = sentence, check
            return check

        return add

    def chosen(self, only: Collection[str] | None, without: Collection[str]) -> list[str]:
        """Return the names of the rules to check; raise ``ValueError`` for a name that is not in the table."""
        check_names({*(only or ()), *without}, self)
        return [name for name in self if name not in without and (only is None or name in only)]

    def broken(
        self,
        subject: Any,
        names: Collection[str],
        *,
        call: Callable[[Callable[[], None]], None] = lambda check: check(),
        catch: type[Exception] = AssertionError,
    ) -> Iterator[BrokenRule]:
        """Check rule after rule, each within `call`; an error that is not a `catch` is raised unchanged."""
        for name in names:
            try:
                call(lambda name=name: self.checks[name](subject))
            except catch as error:
                failed = isinstance(error, AssertionError)  # the check; else the subject has raised something
                how, cause = (error, error.__cause__) if failed else (f"it raised {error!r}", error)
                yield BrokenRule(name, f"{name}: {self[name]}, but {how}", error, cause)

    def check(self, subject: Any, without: Collection[str] = ()) -> None:
        """Raise one ``AssertionError`` for all the rules that `subject` breaks."""
        __tracebackhide__ = True
        report(self.broken(subject, self.chosen(None, without)))


def check_names(names: Collection[str], known: Collection[str]) -> None:
    """Raise ``ValueError`` if one of the names is not the name of a `known` rule."""
    if unknown := sorted(set(names) - set(known)):
        raise ValueError(f"no such rule: {', '.join(unknown)}; there are {', '.join(known)}")


def report(broken: Iterator[BrokenRule] | Sequence[BrokenRule]) -> None:
    """Raise ``AssertionError``, with all the messages and the first cause, if any rule is broken."""
    __tracebackhide__ = True
    if rules := list(broken):
        cause = next((rule.cause for rule in rules if rule.cause is not None), None)
        raise AssertionError(_on_a_screen([rule.message for rule in rules])) from cause


def _on_a_screen(messages: Sequence[str]) -> str:
    """The messages; the later ones are cut to one line where all would be more than `LINES`."""
    lines: list[str] = []
    for index, message in enumerate(messages, 1):
        first, *rest = message.splitlines()
        fits = len(lines) + 1 + len(rest) + len(messages) - index <= LINES
        lines += [shorten(first, 3 * WIDTH), *(rest if fits else ())]
    return "\n".join(lines)


def expect(condition: bool, why: str, cause: BaseException | None = None) -> None:
    """Raise ``AssertionError``, which says how a rule is broken, unless `condition` holds."""
    __tracebackhide__ = True
    if not condition:
        raise AssertionError(why) from cause


def expect_same(
    what: str, expected: Sequence[Any], actual: Sequence[Any], key: Callable[[Any], Any] = lambda item: item
) -> None:
    """Raise ``AssertionError``, which shows the first place where the two differ by `key`, if there is one."""
    __tracebackhide__ = True
    for index, (left, right) in enumerate(zip_longest(expected, actual, fillvalue=_END)):
        if key(left) != key(right):
            wanted, got = near_the_difference(repr(left), repr(right))
            raise AssertionError(f"{what} differs at index {index}:\n    expected  {wanted}\n    actual    {got}")


class _End:
    def __repr__(self) -> str:
        return "the end"


_END = _End()


def near_the_difference(*texts: str) -> list[str]:
    """The texts from shortly before the place where they differ."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    begin = max(0, alike - WIDTH // 2)
    return [shorten("…" * (begin > 0) + text[begin:], WIDTH) for text in texts]


def clip(value: Any) -> str:
    """The repr of `value`, as a message shows it."""
    return shorten(repr(value), WIDTH)
