"""Draw a marble diagram as text."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence

from rxllm.display._card import truncate
from rxllm.display._marble_lanes import MAX_LANES, TICKS, UNUSED, Lane, Mark, Span, rows_of, time_label

COLUMNS = 100
"""The approximate maximum length of a line of marbles, in characters."""

MAX_SYMBOLS = 40
"""If there are more distinct items than this, all items of the same kind share a symbol."""

MAX_TITLE = 30
"""The maximum length of a title, in characters."""

_LETTERS = string.ascii_letters.replace("X", "")


def draw_text(lanes: Sequence[Lane], now: float) -> str:
    """Draw `lanes` as text. Spans that are still running are drawn up to `now`."""
    rows = rows_of(lanes)
    symbols = _Symbols(mark for row in rows for mark in row.span.marks)
    tick, columns = _columns([row.span for row in rows], symbols, now)
    margin = max(len(truncate(row.title, MAX_TITLE)) for row in rows) + 2
    lines: list[str] = []
    for row in rows:
        marbles, subscription = _lines(row.span, symbols, tick, columns, now)
        lines.append((truncate(row.title, MAX_TITLE).ljust(margin) + marbles).rstrip())
        if row.lane is not lanes[-1] or row.span.outcome == "dispose":
            lines.append(" " * margin + subscription)
        lines.append(row.note)
    lines.append(f"and {len(lanes) - MAX_LANES} more" if len(lanes) > MAX_LANES else "")
    lines += [(" " * margin + _axis(tick, columns)), *symbols.legend()]
    return "\n".join(line for line in lines if line.strip())


def _axis(tick: float, columns: dict[int, int]) -> str:
    """Return the time axis. Each label starts at the column for its time."""
    last = max(columns)
    for step in (round(time / tick) for time in TICKS if time >= tick and _is_multiple(time, tick)):
        axis = "0"
        for index in range(step, last + 1, step):
            before = max(known for known in columns if known <= index)
            column = columns[before] + index - before
            if len(axis) >= column:
                break
            axis = axis.ljust(column) + time_label(round(index * tick, 6))
        else:
            if step <= last:
                return axis
    zero = "0" if columns[last] > 1 else ""
    return zero.ljust(columns[last]) + time_label(round(last * tick, 6)) if last else ""


class _Symbols:
    """The letters that stand for items in a text diagram, with one letter for each distinct item or kind of item."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        marks = sorted(marks, key=lambda mark: mark.detail != repr(mark.label))
        self.by_kind = len({mark.key for mark in marks}) > MAX_SYMBOLS or any(mark.size > 1 for mark in marks)
        self._symbols: dict[object, str] = {}
        self._legend: dict[str, str] = {}
        self._errors: dict[str, None] = {}
        for mark in marks:
            if self._key(mark) not in self._symbols:
                name = mark.kind if self.by_kind else mark.label
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


def _groups(span: Span, symbols: _Symbols, tick: float) -> dict[int, str]:
    """Return the text to draw at each tick."""
    groups: dict[int, str] = {}
    for at, symbol in symbols.of(span):
        group = groups.get(round(at / tick), "")
        if not symbols.by_kind or symbol not in group:
            groups[round(at / tick)] = group + symbol
    return {index: f"({group})" if len(group) > 1 else group for index, group in sorted(groups.items())}


def _columns(spans: list[Span], symbols: _Symbols, now: float) -> tuple[float, dict[int, int]]:
    """Return how many seconds each character stands for, and the column of each tick."""
    times = {0.0, now, *(at for span in spans for at in (span.start, span.latest, *(mark.at for mark in span.marks)))}
    finest = max(times) / COLUMNS

    exact = [tick for tick in (1.0, *reversed(TICKS)) if tick >= finest and all(_is_multiple(at, tick) for at in times)]
    tick, columns = 1.0, dict[int, int]()
    for tick in (*exact, next(tick for tick in TICKS if tick >= finest * 1.6)):
        widths = dict.fromkeys(sorted(round(at / tick) for at in times), 1)
        for span in spans:
            widths |= {index: max(widths[index], len(group)) for index, group in _groups(span, symbols, tick).items()}
        columns, column = dict[int, int](), 0
        for index, width in widths.items():
            columns[index] = max(column, index)
            column = columns[index] + width
        if all(index == column for index, column in columns.items()):
            break
    return tick, columns


def _is_multiple(at: float, tick: float) -> bool:
    return at == 0 or (round(at / tick) > 0 and abs(at / tick - round(at / tick)) < 1e-4)


def _lines(span: Span, symbols: _Symbols, tick: float, columns: dict[int, int], now: float) -> tuple[str, str]:
    """Return the line of marbles, and the line below it, which shows how long the subscription lasted."""
    if span.outcome == UNUSED:
        return "", ""
    start, until = (columns[round(at / tick)] for at in (span.start, span.latest if span.outcome else now))
    marbles = " " * start
    for index, group in _groups(span, symbols, tick).items():
        marbles = marbles.ljust(columns[index], "-") + group
    subscription = (" " * start + "^").ljust(until, "-") + ("!" if span.outcome else "-")
    return marbles.ljust(until + (not span.outcome), "-"), subscription
