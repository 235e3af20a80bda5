"""The lanes of a marble diagram, and the functions that draw them as text or as SVG."""

from __future__ import annotations

import html
import math
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast
from unicodedata import east_asian_width

from rxllm.display._card import truncate
from rxllm.events import EVENT_CLASSES, Nested, Steered
from rxllm.values import Labelled

MAX_SPANS, MAX_MARKS = 200, 4000
"""The maximum number of subscriptions in a lane, and the number of marks above which neighbours are joined."""

Kind = tuple[str, bool]
"""A mark's name in the legend, and whether its item is complete. Complete items are drawn as outlines."""

_KINDS = {
    "MessageStarted": ("message", False, "start"),
    "MessageCompleted": ("message", True, "end"),
    "TextDelta": ("text", False, "delta"),
    "TextCompleted": ("text", True, "text"),
    "ThinkingDelta": ("thinking", False, "delta"),
    "ThinkingCompleted": ("thinking", True, "text"),
    "ToolCallStarted": ("tool call", False, "name"),
    "ToolCallDelta": ("tool call", False, "arguments_delta"),
    "ToolCallCompleted": ("tool call", True, "tool_call"),
    "ToolApprovalRequested": ("tool", False, "approve?"),
    "ToolExecutionStarted": ("tool", False, "run"),
    "ToolProgress": ("tool", False, "data"),
    "ToolExecutionCompleted": ("tool", True, "result"),
    "ToolResultEncoded": ("tool", True, "content"),
    "AskUserRequested": ("tool", True, "question"),
    "ToolHalt": ("tool", True, "reason"),
    "StepRestarted": ("step", False, "restarted"),
    "StepCompleted": ("step", True, "step"),
    "ChatCompleted": ("step", True, "chat"),
    "ErrorEvent": ("error", False, "error"),
    "UsageUpdated": ("value", False, "tokens"),
}
"""The kind of each event class, and either the field that contains its label or the label itself."""


class Mark(NamedTuple):
    """An item, or `size` items from `at` to `until`. Equal items have the same `key`. `detail` is the item's repr."""

    at: float
    until: float
    kind: Kind
    label: str
    detail: str
    key: int
    size: int = 1


@dataclass
class Span:
    """A subscription and its marks. `outcome` is the kind of its final `Trace`, or None while it is running."""

    start: float
    latest: float
    outcome: str | None = None
    error: Mark | None = None
    marks: list[Mark] = field(default_factory=list[Mark])

    def note(self, kind: str, at: float, item: Any) -> None:
        self.latest = at
        if kind == "next":
            self.marks.append(mark_of(item, at))
            if len(self.marks) > MAX_MARKS:
                self.marks = join_marks(self.marks, (at - self.start) * 4 / MAX_MARKS, MAX_MARKS // 2)
        elif kind != "subscribe":
            self.error = mark_of(item, at) if kind == "error" else None
            self.outcome = kind


class Lane:
    """A place in a pipe whose items are drawn, with a span for each subscription."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.spans: list[Span] = []

    def begin(self, at: float) -> Span:
        self.spans = [*self.spans[1 - MAX_SPANS :], Span(at, at)]
        return self.spans[-1]

    def rows(self) -> list[list[Span]]:
        """Arrange copies of the spans in rows, without overlaps. They are copied because they may still change."""
        rows: list[list[Span]] = [[]]
        for span in self.spans:
            copy = replace(span, marks=list(span.marks))
            free = (row for row in rows if not row or (row[-1].outcome and row[-1].latest <= span.start))
            row = next(free, None)
            rows.append([copy]) if row is None else row.append(copy)
        return rows


def join_marks(marks: Iterable[Mark], gap: float, most: int) -> list[Mark]:
    """Join neighbours of the same kind that are at most `gap` apart.

    If more than `most` marks are left, join neighbours of any kind.
    """
    result: list[Mark] = []
    for mark in marks:
        last = result[-1] if result else mark
        if result and mark.at - last.until <= gap and (last.kind == mark.kind or not most):
            kind = last.kind if last.kind == mark.kind else ("several", False)
            result[-1] = last._replace(until=mark.until, kind=kind, size=last.size + mark.size)
        else:
            result.append(mark)
    return join_marks(result, gap, 0) if 0 < most < len(result) else result


def mark_of(item: Any, at: float) -> Mark:
    try:
        (kind, label), detail = _describe(item), repr(item)
    except Exception:  # a repr or a property of the user's own class failed
        kind, label, detail = ("value", False), type(item).__name__, object.__repr__(item)
    return Mark(at, at, kind, truncate(label, 40), truncate(detail, 80), hash(detail))


def _describe(item: Any) -> tuple[Kind, str]:
    if isinstance(item, Labelled):
        labelled = cast(Labelled[Any], item)
        kind, label = _describe(labelled.item)
        return kind, f"{labelled.label}: {label}"
    if isinstance(item, Nested):
        kind, label = _describe(item.event)
        return kind, f"{'/'.join(item.path)}: {label}"
    if isinstance(item, Steered):
        return ("message", False), item.message.text
    if isinstance(item, BaseException):
        return ("error", False), getattr(item, "reason", type(item).__name__)
    name, is_complete, field = _KINDS.get(type(item).__name__, ("value", False, ""))
    if type(item) not in EVENT_CLASSES or not field:
        return ("value", False), item if isinstance(item, str) else repr(item)
    error = getattr(item, "error", None)
    value = getattr(item, field, field) if error is None else _describe(error)[1]
    return (name, is_complete), value if isinstance(value, str) else repr(value)


COLUMNS = 100
"""The approximate length of a line of marbles, in characters."""

MAX_SYMBOLS = 40
"""The maximum number of distinct items with their own symbols. Beyond that, items of one kind share a symbol."""

TICKS = tuple(factor * 10.0**power for power in range(-4, 4) for factor in (1, 2, 2.5, 5))
"""The durations that a character can represent, in seconds."""

_LETTERS = string.ascii_letters.replace("X", "")


def draw_text(lanes: Sequence[Lane], now: float) -> str:
    """Draw the `lanes` as text, with a legend of the symbols. Spans that are still running end at `now`."""
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
    """Assigns a letter to each distinct item. As in marble notation, a string of one letter is its own symbol."""

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
    """Return the text to draw at each tick: one symbol, or several in parentheses."""
    groups: dict[int, str] = {}
    for at, symbol in (signal for span in spans for signal in symbols.of(span)):
        group = groups.get(round(at / tick), "")
        if not symbols.by_kind or symbol not in group:
            groups[round(at / tick)] = group + symbol
    return {index: f"({group})" if len(group) > 1 else group for index, group in sorted(groups.items())}


def _columns(rows: list[list[Span]], symbols: _Symbols, now: float) -> tuple[float, dict[int, int]]:
    """Return the seconds per character, and the column of each tick. Wide groups move later columns to the right."""
    spans = [span for row in rows for span in row]
    times = {now, *(at for span in spans for at in (span.start, span.latest, *(mark.at for mark in span.marks)))}
    finest = max(times) / COLUMNS

    def on_tick(at: float, tick: float) -> bool:
        return abs(at / tick - round(at / tick)) < 1e-4

    exact = [tick for tick in (1.0, *reversed(TICKS)) if tick >= finest and all(on_tick(at, tick) for at in times)]
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


def _lines(spans: list[Span], symbols: _Symbols, tick: float, columns: dict[int, int], now: float) -> tuple[str, str]:
    """Return two lines: the marbles and, below them, the subscriptions."""
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


WIDTH, MARGIN = 680, 70
"""The width of a cell on a small screen, and the space on the right for the last labels."""

CHARACTER = 6.7
"""The width of a character in the monospaced font."""

STACK = 15
"""The vertical distance between simultaneous marks."""

LABEL = 30
"""The maximum length of a lane's label, in characters."""

MAX_ROWS, MAX_STACK, MAX_LABELS = 30, 10, 80
"""A row with more than `MAX_LABELS` marks has no labels, and nearby marks are joined, so a burst becomes a bar."""

_STYLE = """.rxm{--bg:#fff;--fg:#1f2328;--soft:#8c959f;--line:#d8dee4;--text:#0969da;--think:#8250df;--call:#bc4c00;
--tool:#1b7c83;--step:#1a7f37;--bad:#cf222e;font:11px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media(prefers-color-scheme:dark){.rxm{--bg:#0d1117;--fg:#e6edf3;--line:#30363d;--text:#58a6ff;--think:#bc8cff;
--call:#f0883e;--tool:#39c5cf;--step:#3fb950;--bad:#ff7b72}}
.rxm text{fill:var(--fg);stroke:var(--bg);stroke-width:3px;paint-order:stroke;white-space:pre}
.rxm .soft{fill:var(--soft)}.rxm path{stroke-width:1.6;stroke:var(--c);fill:var(--c)}
.rxm .hollow{fill:var(--bg)}.rxm .line{fill:none}"""

_CIRCLE = "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z"
_SHAPES = {
    "text": ("text", _CIRCLE),
    "thinking": ("think", "m0-6l6 10h-12z"),
    "tool call": ("call", "m0-6l6 6-6 6-6-6z"),
    "tool": ("tool", "m-5-5h10v10h-10z"),
    "message": ("soft", "m-2-5h4v10h-4z"),
    "step": ("step", "m-6 0l3-5h6l3 5-3 5h-6z"),
    "value": ("fg", _CIRCLE),
    "several": ("soft", _CIRCLE),
    "error": ("bad", "m-6-6l12 12m0-12l-12 12"),
    "end": ("fg", "m0-11v22"),
    "dispose": ("soft", "m0-11v8m-3 0h6v6h-6zm3 6v8"),
}
"""The colour and the path of each kind. The path is relative to the position of the mark."""

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

Box = tuple[float, float, float, float]
Place = tuple[float, float, Mark]


def draw_svg(lanes: Sequence[Lane], now: float) -> str:
    """Draw the `lanes` as SVG. Spans that are still running end at `now`."""
    rows = [(lane.label, spans) for lane in lanes for spans in lane.rows()]
    picture = _Picture(36 + CHARACTER * max((_width(truncate(label, LABEL)) for label, _ in rows), default=0), now)
    for index, (label, spans) in enumerate(rows[:MAX_ROWS]):
        picture.add_row("" if index and label == rows[index - 1][0] else label, spans)
    if len(rows) > MAX_ROWS:
        picture.add_text(12, picture.y + 12, f"and {len(rows) - MAX_ROWS} more", "soft")
    grid = picture.grid()
    picture.add_legend()
    title = html.escape(_clean(", ".join(label for label, _ in rows[:MAX_ROWS])))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="rxm" viewBox="0 0 {WIDTH} {picture.y}" width="{WIDTH}"'
    head += f' height="{picture.y}" role="img"><title>{title}</title>\n<style>{_STYLE}</style>'
    card = f'<rect width="{WIDTH}" height="{picture.y}" rx="6" style="fill:var(--bg)"/>'
    return "\n".join([head, card, *grid, *picture.parts, "</svg>\n"])


class _Picture:
    """An unfinished picture, with the elements drawn so far and the height `y` at which to draw the next one."""

    def __init__(self, left: float, duration: float) -> None:
        self.parts: list[str] = []
        self.y = 8
        self._left = left
        self._duration = duration or 1.0
        self._second = (WIDTH - MARGIN - left) / self._duration
        self._kinds: set[tuple[str, bool]] = set()

    def add_row(self, label: str, spans: list[Span]) -> None:
        columns = self._columns([mark for span in spans for mark in span.marks])
        y = self.y + 24 + STACK * (max(map(len, columns.values()), default=1) - 1)
        self.y = y + 24
        self.add_path("line", "line", [f"M{self._x(0)} {y}H{WIDTH - MARGIN}"], ' stroke-dasharray="1 4"')
        places: list[Place] = [
            (x, y - STACK * at, mark) for x, column in columns.items() for at, mark in enumerate(column)
        ]
        taken: list[Box] = []
        paths: dict[tuple[str, bool], list[str]] = {}
        for x, height, mark in places:
            paths.setdefault(mark.kind, []).append(_shape(mark.kind[0], x, height, self._bar(mark)))
        for span in spans:
            until = self._x(span.latest if span.outcome else self._duration)
            until += 12 * (until in columns)  # if there is a mark there already, draw the end next to it
            self.add_path("soft", "line", [f"M{self._x(span.start)} {y}H{until}"])
            if span.outcome:
                taken.append((until - 1, until + 1, y - 6, y + 6))
                paths.setdefault((span.outcome, False), []).append(_shape(span.outcome, until, y))
            if span.error is not None:
                places.append((until, y, span.error))
        for kind, shapes in paths.items():
            self.add_path(_SHAPES[kind[0]][0], "hollow" if kind[1] else "", shapes)
        self._kinds |= paths.keys()
        self._add_labels(places, taken, y)
        self.add_text(12, y + 4, truncate(label, LABEL))

    def grid(self) -> list[str]:
        """Write the times below the rows. Return the vertical grid lines, which are drawn behind the rows."""
        power = 10.0 ** math.floor(math.log10(self._duration / 8))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= self._duration / 8.001)
        ticks = [round(index * step, 9) for index in range(int(self._duration / step + 1e-6) + 1)]
        before, self.parts = self.parts, []
        self.add_path("line", "line", [f"M{self._x(tick)} 8V{self.y + 4}" for tick in ticks], ' stroke-width="1"')
        lines, self.parts = self.parts, before
        for tick in ticks:
            label = seconds(tick) if self._duration < 1 else f"{tick:g} s"
            self.add_text(self._x(tick) - CHARACTER * len(label) / 2, self.y + 18, label, "soft")
        self.y += 30
        return lines

    def add_legend(self) -> None:
        names = [name for name in _SHAPES if {(name, False), (name, True)} & self._kinds and name != "message"]
        x = 20
        for name, is_complete in [*((name, False) for name in names), ("complete", True)]:
            if is_complete and not any(kind[1] for kind in self._kinds):
                break
            self.add_path(_SHAPES.get(name, ("fg",))[0], "hollow" * is_complete, [_shape(name, x, self.y + 8)])
            self.add_text(x + 11, self.y + 12, name, "soft")
            x += round(CHARACTER * (len(name) + 4))
        self.y += 24

    def add_path(self, colour: str, cls: str, paths: Iterable[str], more: str = "") -> None:
        self.parts.append(f'<path class="{cls}" style="--c:var(--{colour})" d="{"".join(paths)}"{more}/>')

    def add_text(self, x: float, y: float, text: str, cls: str = "") -> None:
        self.parts.append(f'<text class="{cls}" x="{round(x)}" y="{y}">{html.escape(_clean(text))}</text>')

    def _x(self, at: float) -> int:
        return round(self._left + self._second * at)

    def _bar(self, mark: Mark) -> int:
        return self._x(mark.until) - self._x(mark.at)

    def _columns(self, marks: list[Mark]) -> dict[int, list[Mark]]:
        """Group the marks by their horizontal position in pixels."""
        if len(marks) > MAX_LABELS:
            marks = join_marks(marks, 3 / self._second, WIDTH)
        columns: dict[int, list[Mark]] = {}
        for mark in marks:
            column = columns.setdefault(self._x(mark.at), [])
            column.append(mark)
            if len(column) > MAX_STACK:
                column[-2:] = join_marks(column[-2:], math.inf, 0)
        return columns

    def _add_labels(self, places: list[Place], taken: list[Box], y: int) -> None:
        """Draw the labels that fit, truncated if necessary, above or below their marks, or to the right of a stack."""
        taken += [(x - 6, x + 6 + self._bar(mark), at - 6, at + 6) for x, at, mark in places]
        stacked = {x for x, at, _ in places if at < y}
        for x, at, mark in sorted(places, key=lambda place: place[0]) if len(places) <= MAX_LABELS else ():
            visible = re.sub("^ +| +$", lambda spaces: "␣" * len(spaces[0]), mark.label)
            text = visible if mark.size == 1 else f"{mark.size} x"
            for label in (truncate(text, 24), truncate(text, 10), truncate(text, 5)):
                width = CHARACTER * _width(label)
                middle = x + (self._bar(mark) - width) / 2
                spots = [(middle, at - 10), (middle, at + 18)]
                if x in stacked and mark.size == 1:
                    spots = [(x + 9.0, at + 4), (x + 17.0, at + 4)]
                boxes = ((left, left + width + 3, base - 9, base + 3) for left, base in spots)
                box = next((box for box in boxes if box[1] < WIDTH and not _overlaps(box, taken)), None)
                if box is not None:
                    taken.append(box)
                    self.add_text(box[0], round(box[3] - 3), label)
                    break


def _overlaps(box: Box, others: Iterable[Box]) -> bool:
    return any(box[0] < b[1] and b[0] < box[1] and box[2] < b[3] and b[2] < box[3] for b in others)


def _shape(name: str, x: float, y: float, bar: int = 0) -> str:
    path = f"m0-5h{bar}a5 5 0 0 1 0 10h-{bar}a5 5 0 0 1 0-10z" if bar else _SHAPES.get(name, ("", _CIRCLE))[1]
    return f"M{x:g} {y:g}{path}"


def _clean(text: str) -> str:
    """Replace characters that SVG forbids, or that change the writing direction of other text."""
    return _CONTROLS.sub("·", text.replace("\n", "↵"))


def _width(text: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)
