"""A marble diagram as text: a line a lane, in the notation of `rxllm.testing.marbles`."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Iterator, Sequence

from rxllm.display._marble_lanes import Lane, Mark, Span, clipped

WIDTH = 100
"""How many characters a line of marbles has, more or less."""

MAX_SYMBOLS = 40
"""How many different items have a symbol each; if there are more, each kind has one."""

TICKS = (1.0, 0.5, 0.25, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Seconds a character may stand for where the picture is exact."""

_SYMBOLS = string.ascii_letters.replace("X", "") + string.digits

Row = tuple[str, list[Span], bool]
Columns = dict[int, int]


def draw_text(lanes: Sequence[Lane], now: float) -> str:
    """Return the lines of the `lanes`, and what their symbols mean. `now` is the end of what is still running."""
    rows = [(lane.label, spans, lane is lanes[-1]) for lane in lanes for spans in lane.rows()]
    symbols = _Symbols(mark for _, spans, _ in rows for span in spans for mark in span.marks)
    tick, columns = _exact(rows, symbols, now) or _stretched(rows, symbols, now)
    margin = max(len(label) for label, _, _ in rows) + 2
    lines = [line for row in rows for line in _lines(row, symbols, tick, columns, margin, now)]
    exact = all(column == index for index, column in columns.items())
    return "\n".join([*lines, *symbols.legend(), f"a character is {'' if exact else 'about '}{seconds(tick)}"])


def seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1 or value == 0 else f"{value * 1000:g} ms"


class _Symbols:
    """A letter for each different item; a string of one letter stands for itself."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        marks = list(marks)
        self._by_kind = len({mark.key for mark in marks}) > MAX_SYMBOLS or any(mark.count > 1 for mark in marks)
        self._symbols: dict[object, str] = {}
        self._legend: dict[str, str] = {}
        counts: dict[str, int] = {}
        for mark in sorted(marks, key=lambda mark: mark.detail != repr(mark.label)):  # those that stand for themselves
            symbol = self._symbols.setdefault(self._key(mark), self._free(mark))
            counts[symbol] = counts.get(symbol, 0) + mark.count
            self._legend.setdefault(symbol, mark.kind[0] if self._by_kind else mark.detail)
        if self._by_kind:
            self._legend = {symbol: f"{counts[symbol]} x {name}" for symbol, name in self._legend.items()}
        self._errors: list[str] = []

    def of(self, mark: Mark) -> str:
        return self._symbols[self._key(mark)]

    def error(self, mark: Mark) -> str:
        if mark.detail not in self._errors:
            self._errors.append(mark.detail)
        return "X"

    def legend(self) -> list[str]:
        entries = {symbol: detail for symbol, detail in sorted(self._legend.items()) if detail != repr(symbol)}
        return [f"{symbol}={detail}" for symbol, detail in (*entries.items(), *(("X", error) for error in self._errors))]

    def _key(self, mark: Mark) -> object:
        return mark.kind if self._by_kind else mark.key

    def _free(self, mark: Mark) -> str:
        label = mark.kind[0] if self._by_kind else mark.label
        return next((letter for letter in (*label, *_SYMBOLS) if letter in _SYMBOLS and letter not in self._legend), "*")


def _groups(spans: list[Span], symbols: _Symbols, tick: float) -> dict[int, str]:
    """Return what stands at each tick: a symbol, or those of a group in brackets."""
    groups: dict[int, list[str]] = {}
    for span in spans:
        for mark in span.marks:
            group = groups.setdefault(round(mark.at / tick), [])
            if not group or len(group) < 8 or group[-1] != symbols.of(mark):  # a burst is not longer than that
                group.append(symbols.of(mark))
        if span.until is not None and span.outcome != "dispose":
            end = "|" if span.error is None else symbols.error(span.error)
            groups.setdefault(round(span.until / tick), []).append(end)
    return {index: group[0] if len(group) == 1 else f"({''.join(group)})" for index, group in sorted(groups.items())}


def _times(rows: list[Row], now: float) -> Iterator[float]:
    yield now
    for _, spans, _ in rows:
        for span in spans:
            yield from (span.start, now if span.until is None else span.until)
            yield from (mark.at for mark in span.marks)


def _exact(rows: list[Row], symbols: _Symbols, now: float) -> tuple[float, Columns] | None:
    """Return the first tick at which every signal is on a tick of its own, if there is one."""
    times = set(_times(rows, now))
    for tick in TICKS:
        if max(times) / tick > WIDTH or any(abs(time / tick - round(time / tick)) > 1e-4 for time in times):
            continue
        lines = [_groups(spans, symbols, tick) for _, spans, _ in rows]
        if all(index + len(group) <= following for line in lines for (index, group), following in _followed(line)):
            return tick, {index: index for index in {round(time / tick) for time in times}}
    return None


def _followed(line: dict[int, str]) -> Iterator[tuple[tuple[int, str], int]]:
    return zip(line.items(), list(line)[1:], strict=False)


def _stretched(rows: list[Row], symbols: _Symbols, now: float) -> tuple[float, Columns]:
    """Return a tick at which all fits, more or less; what needs more room moves to the right, in all lines."""
    rough = max(_times(rows, now)) / (WIDTH * 0.6) or 0.001
    power = 10.0 ** math.floor(math.log10(rough))
    tick = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    widths: dict[int, int] = {round(time / tick): 1 for time in _times(rows, now)}
    for _, spans, _ in rows:
        for index, group in _groups(spans, symbols, tick).items():
            widths[index] = max(widths[index], len(group))
    columns: Columns = {}
    column = 0
    for index in sorted(widths):
        columns[index] = column = max(column, index)
        column += widths[index]
    return tick, columns


def _lines(row: Row, symbols: _Symbols, tick: float, columns: Columns, margin: int, now: float) -> Iterator[str]:
    """Yield the line of marbles, and that of the subscriptions, which for the last stage only shows a dispose."""
    label, spans, is_last = row
    marbles, uses = "", ""
    for span in spans:
        start, until = (columns[round((now if at is None else at) / tick)] for at in (span.start, span.until))
        marbles = marbles.ljust(start, " ")
        for index, group in _groups([span], symbols, tick).items():
            marbles = marbles.ljust(columns[index], "-") + group
        marbles = marbles.ljust(until + (not span.outcome), "-")
        uses = uses.ljust(start) + "^" + "-" * (until - start - 1) + ("!" if span.outcome else "-")
    yield clipped(label, WIDTH).ljust(margin) + marbles
    if not is_last or any(span.outcome == "dispose" for span in spans):
        yield " " * margin + uses
