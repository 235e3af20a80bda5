"""A marble diagram as text: a line a lane, in the notation of `rxllm.testing.marbles`."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence

from rxllm.display._marble_lanes import Lane, Mark, Span

WIDTH = 100
"""How many characters a line of marbles has, more or less."""

MAX_SYMBOLS = 40
"""How many different items have a symbol each; if there are more, each kind has one."""

TICKS = tuple(factor * 10.0**power for power in range(-4, 4) for factor in (1, 2, 2.5, 5))
"""The seconds that a character may stand for."""

_LETTERS = string.ascii_letters.replace("X", "")


def draw_text(lanes: Sequence[Lane], now: float) -> str:
    """Return the lines of the `lanes`, and what their symbols mean. `now` is the end of what is still running."""
    rows = [(lane, spans) for lane in lanes for spans in lane.rows()]
    symbols = _Symbols(mark for _, spans in rows for span in spans for mark in span.marks)
    tick, columns = _columns([spans for _, spans in rows], symbols, now)
    margin = max(len(lane.label) for lane in lanes) + 2
    lines: list[str] = []
    for lane, spans in rows:
        marbles, uses = _lines(spans, symbols, tick, columns, now)
        lines.append(lane.label.ljust(margin) + marbles)
        if lane is not lanes[-1] or "dispose" in [span.outcome for span in spans]:
            lines.append(" " * margin + uses)
    about = "" if all(column == index for index, column in columns.items()) else "about "
    return "\n".join([*lines, *symbols.legend(), f"a character is {about}{seconds(tick)}"])


def seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1 or value == 0 else f"{value * 1000:g} ms"


class _Symbols:
    """A letter for each different item; a string of one letter stands for itself, as in the notation."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        marks = sorted(marks, key=lambda mark: mark.detail != repr(mark.label))
        self.by_kind = len({mark.key for mark in marks}) > MAX_SYMBOLS or any(mark.size > 1 for mark in marks)
        self._symbols: dict[object, str] = {}
        self._legend: dict[str, str] = {}
        self._errors: dict[str, None] = {}
        for mark in marks:
            if self._key(mark) not in self._symbols:
                name = mark.kind[0] if self.by_kind else mark.label
                itself = mark.detail == repr(name) and len(name) == 1 and name not in "-|X() *"
                free = (letter for letter in name + _LETTERS if letter in _LETTERS and letter not in self._legend)
                symbol = self._symbols[self._key(mark)] = name if itself else next(free, "*")
                self._legend[symbol] = f"{name} ..." if self.by_kind else mark.detail

    def of(self, span: Span) -> Iterator[tuple[float, str]]:
        yield from ((mark.at, self._symbols[self._key(mark)]) for mark in span.marks)
        if span.error is not None:
            self._errors[span.error.detail] = None
        if span.outcome in ("end", "error"):
            yield span.latest, "|" if span.error is None else "X"

    def legend(self) -> list[str]:
        entries = [(symbol, detail) for symbol, detail in sorted(self._legend.items()) if detail != repr(symbol)]
        return [f"{symbol}={detail}" for symbol, detail in (*entries, *(("X", error) for error in self._errors))]

    def _key(self, mark: Mark) -> object:
        return mark.kind if self.by_kind else mark.key


def _groups(spans: list[Span], symbols: _Symbols, tick: float) -> dict[int, str]:
    """Return what stands at each tick: a symbol, or those of a group in brackets."""
    groups: dict[int, str] = {}
    for at, symbol in (signal for span in spans for signal in symbols.of(span)):
        group = groups.get(round(at / tick), "")
        if not symbols.by_kind or symbol not in group:
            groups[round(at / tick)] = group + symbol
    return {index: f"({group})" if len(group) > 1 else group for index, group in sorted(groups.items())}


def _columns(rows: list[list[Span]], symbols: _Symbols, now: float) -> tuple[float, dict[int, int]]:
    """Return the seconds a character, and where each tick stands: further right than it should be if groups need it."""
    spans = [span for row in rows for span in row]
    times = {now, *(at for span in spans for at in (span.start, span.latest, *(mark.at for mark in span.marks)))}
    finest = max(times) / WIDTH
    exact = [tick for tick in (1.0, *reversed(TICKS)) if tick >= finest and all(_on_tick(at, tick) for at in times)]
    tick, columns = 1.0, dict[int, int]()
    for tick in (*exact, next(tick for tick in TICKS if tick >= finest * 1.6)):
        widths = dict.fromkeys(sorted(round(at / tick) for at in times), 1)
        for row in rows:
            widths |= {index: max(widths[index], len(group)) for index, group in _groups(row, symbols, tick).items()}
        columns, column = dict[int, int](), 0
        for index, width in widths.items():
            columns[index] = max(column, index)
            column = columns[index] + width
        if all(index == column for index, column in columns.items()):
            break
    return tick, columns


def _on_tick(at: float, tick: float) -> bool:
    return abs(at / tick - round(at / tick)) < 1e-4


def _lines(spans: list[Span], symbols: _Symbols, tick: float, columns: dict[int, int], now: float) -> tuple[str, str]:
    """Return the line of marbles, and that of the subscriptions."""
    marbles, uses = "", ""
    for span in spans:
        start, until = (columns[round(at / tick)] for at in (span.start, span.latest if span.outcome else now))
        marbles = marbles.ljust(start)
        for index, group in _groups([span], symbols, tick).items():
            marbles = marbles.ljust(columns[index], "-") + group
        marbles = marbles.ljust(until + (not span.outcome), "-")
        uses = uses if len(uses) > start else uses.ljust(start) + "^"
        uses = uses.ljust(until, "-") + ("!" if span.outcome else "-")
    return marbles, uses
