"""Draw a marble diagram as SVG.

Each subscription has a row, and each operator has a box. A row has a slot for each item and one for the end of the
subscription. Slots and labels never overlap. If the chart is too narrow to put every slot at its exact time, slots are
moved to the right, and the time axis is stretched to match.
"""

from __future__ import annotations

import html
import math
import re
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from unicodedata import east_asian_width

from rxllm.display._card import truncate
from rxllm.display._marble_lanes import (
    MAX_LANES,
    QUIET,
    TICKS,
    UNUSED,
    Lane,
    Mark,
    Row,
    describe,
    join_marks,
    rows_of,
    time_label,
)

CHARACTER = 7.25

WIDTHS = ((280, 1), (350, 1), (420, 1), (350, 2), (420, 2), (520, 2), (640, 2))
"""Pairs of (width of the time axis in pixels, number of label levels), in the order in which they are tried."""

MAX_WIDTH, LIMITS = 1000, ((30, 80), (30, 40), (30, 24), (30, 12), (12, 12), (0, 12))
"""The maximum width of a chart in pixels, and the pairs of limits to try, in order.

Each pair is the maximum number of marks per row and the maximum length of a label. A row that has more marks shows
ticks instead of marks and labels.
"""

RADIUS, GAP, LABEL_GAP, LEVEL = 7, 6, 14, 15
"""The radius of a mark, the gap between marks, the gap between labels, and the height of a label level, in pixels."""

PALETTE = ("#3b82f6", "#d9730d", "#2e9e5b", "#9a5cd0", "#0f97a8", "#d4569a", "#a88300", "#a0653a")
"""The colours of items, which are readable on both light and dark pages."""

_STYLE = """.rxm{font:12px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;max-width:100%;height:auto}
.rxm text,.rxm .soft,.rxm .faint{fill:currentColor;white-space:pre}.rxm .soft{opacity:.65}.rxm .faint{opacity:.15}
.rxm .line{fill:none;stroke:currentColor;stroke-width:1.5}.rxm .bad{fill:#e5484d}
.rxm .line.bad{fill:none;stroke:#e5484d;stroke-width:2}.rxm .code{font-size:13px}.rxm .small{font-size:11px}
.rxm .middle,.rxm .code{text-anchor:middle}.rxm .end{text-anchor:end}
.rxm .card{fill:none}.rxm:root{color:#1f2328}.rxm:root .card{fill:#fff}
@media(prefers-color-scheme:dark){.rxm:root{color:#e6edf3}.rxm:root .card{fill:#0d1117}}"""
# A standalone file has no page to take its colours from, so it has a card behind the diagram.

_SHAPES = {
    "text": ("text", "", "m-7 0a7 7 0 1 0 14 0a7 7 0 1 0-14 0z"),
    "thinking": ("thinking", "", "m0-8l8 14h-16z"),
    "arguments": ("arguments", "", "m-8-6h16l-8 14z"),
    "tool call": ("tool call", "", "m0-8.5l8.5 8.5-8.5 8.5-8.5-8.5z"),
    "tool output": ("tool output", "", "m-7-7h14v14h-14z"),
    "question": ("question", "", "m0-8l8 6-3 9h-10l-3-9z"),
    "usage": ("usage", "", "m-3-8h6v5h5v6h-5v5h-6v-5h-5v-6h5z"),
    "value": ("value", "", "m-8 0l4-7h8l4 7-4 7h-8z"),
    "restart": ("restart", "", "m8-7l-8 7 8 7zm-8 0l-8 7 8 7z"),
    "error event": ("error event", "bad", "m-3.3-8h6.6l4.7 4.7v6.6l-4.7 4.7h-6.6l-4.7-4.7v-6.6z"),
    "several": ("many items", "soft", "m-1-6h2v12h-2z"),
    "start": ("start event", "soft", "m-3-4l6 4-6 4z"),
    "complete": ("completion event", "soft", "m-3-3h6v6h-6z"),
    "at once": ("at once", "faint", "m-3-6h6a6 6 0 0 1 0 12h-6a6 6 0 0 1 0-12z"),
    "end": ("end", "line", "m0-9v18"),
    "error": ("failure", "line bad", "m-6-6l12 12m0-12l-12 12"),
    "dispose": ("cut", "line", "m-5 8l5-16m0 16l5-16"),
    "running": ("still running", "line soft", "m-6-5l6 5-6 5"),
}
"""The name, style and path of each kind of mark, in legend order.

A mark with the style "" takes the colour of its content. Paths are relative to the mark's position.
"""

_RADII = {"start": 3, "complete": 3, "end": 2, "dispose": 5}

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def draw_svg(lanes: Sequence[Lane], now: float) -> str:
    """Draw `lanes` as SVG. Spans that are still running are drawn up to `now`."""
    rows = rows_of(lanes)
    picture = _Picture(_best_chart(rows, now))
    picture.add_rows()
    if len(lanes) > MAX_LANES:
        picture.add_note(f"and {len(lanes) - MAX_LANES} more")
    picture.add_axis()
    picture.add_legend()
    names, code = ([lane.label for lane in lanes[:MAX_LANES] if lane.is_operator is kind] for kind in (False, True))
    title = ", ".join(names) + (" through " if code else "") + ", ".join(code)
    return picture.svg(title, " ".join(map(describe, rows)))


def _best_chart(rows: list[Row], now: float) -> _Chart:
    charts = (_chart_within(limits, rows, now) for limits in LIMITS)
    chart = next((chart for chart in charts if chart.right <= MAX_WIDTH), None) or _chart_within(LIMITS[-1], rows, now)
    chart.place_dense()
    return chart


def _chart_within(limits: tuple[int, int], rows: list[Row], now: float) -> _Chart:
    """Return the first chart in which all times are exact, or a chart of medium width if there is none."""
    least = max((_width(row.lane.label) - 40 for row in rows if row.lane.is_operator), default=0.0)
    charts = [partial(_Chart, rows, now, limits, max(width, least), levels) for width, levels in WIDTHS]
    return next((chart for chart in (make() for make in charts) if chart.is_exact), None) or charts[4]()


@dataclass
class _Slot:
    """A mark at position `x`, with its label above the row."""

    kind: str
    label: str = ""
    content: str = ""
    x: float = 0.0
    label_x: float = 0.0
    level: int = 0
    bar: float = 0.0

    @property
    def radius(self) -> float:
        return _RADII.get(self.kind, RADIUS)


class _Line:
    """One row of the diagram, with the slots that hold its marks."""

    def __init__(self, row: Row, limits: tuple[int, int]) -> None:
        self.row, self.span = row, row.span
        self.title = row.title
        if row.lane.is_operator and row.number == 1:  # the operator's label is drawn in a box instead
            self.title = row.ordinal if len(row.lane.spans) > 1 else ""
        most, self._length = limits
        self.is_dense = len(self.span.marks) > most
        self.edge, self.edges, self.limit = -math.inf, list[float](), math.inf
        self.slots: list[_Slot] = []
        self.capsules: list[_Slot] = []
        self.groups: dict[float, list[_Slot]] = {}
        for mark in () if self.is_dense else self.span.marks:
            self.groups.setdefault(mark.at, []).append(self.slot(mark))
        if self.span.outcome not in (None, UNUSED):
            label = truncate(self.span.error.label, self._length) if self.span.error else ""
            self.groups.setdefault(self.span.latest, []).append(_Slot(self.span.outcome, _visible(label)))

    def slot(self, mark: Mark) -> _Slot:
        if mark.kind in QUIET:
            return _Slot(mark.kind)
        return _Slot(mark.kind, _visible(truncate(mark.label, self._length)) or "''", mark.content)

    @property
    def end(self) -> float | None:
        """The x position where the row ends, or None while the stream is still running."""
        return next((slot.x for slot in self.slots if slot.kind == self.span.outcome), None)

    def needed(self, at: float) -> float:
        """Return the leftmost free position for the items at time `at`."""
        return self.edge + GAP + self._first_item(at)[1]

    def shift(self, at: float, x: float) -> float:
        """Return how far to the right of `x` to place the first mark at time `at`, so that its label fits."""
        return self._spot(self._first_item(at)[0], x)[0]

    def put_group(self, at: float, x: float) -> None:
        slots = self.groups[at]
        x += slots[0].radius - self._first_item(at)[1]
        for index, slot in enumerate(slots):
            if index:
                x += slots[index - 1].radius + slot.radius + 2
                x += self._spot(slot, x)[0]
            self.put(slot, x)
        items = [slot.x for slot in slots if slot.kind not in (*QUIET, self.span.outcome)]
        if len(items) > 1:
            self.capsules.append(_Slot("at once", x=(items[0] + items[-1]) / 2, bar=items[-1] - items[0]))

    def put(self, slot: _Slot, x: float) -> None:
        slot.x, self.edge = x, x + slot.radius
        self.slots.append(slot)
        if slot.label:
            width = _width(slot.label)
            _, _, slot.level, left = self._spot(slot, x)
            slot.label_x, self.edges[slot.level] = left + width / 2, left + width
            self.edges[: slot.level] = [max(edge, x + 3) for edge in self.edges[: slot.level]]

    def put_bar(self, mark: Mark, x: float, until: float, has_label: bool) -> None:
        """Add a tick or a bar to a dense row."""
        slot = _Slot("several", f"{mark.size} x" if has_label else "", bar=until - x)
        if self._spot(slot, (x + until) / 2)[0]:
            slot.label = ""
        self.put(slot, (x + until) / 2)

    def _first_item(self, at: float) -> tuple[_Slot, float]:
        """Return the slot that marks the time `at`, and its distance from the left edge of its group."""
        slots = self.groups[at]
        is_start = at == self.span.start
        index = next((index for index, slot in enumerate(slots) if is_start or slot.kind not in QUIET), 0)
        return slots[index], sum(2 * slot.radius + 2 for slot in slots[:index]) + slots[index].radius

    def _spot(self, slot: _Slot, x: float) -> tuple[float, bool, int, float]:
        """Return how far the slot must be moved, whether its label is moved, and the label's level and left edge."""
        width = _width(slot.label)
        cover = min(6.0, width / 2)
        wish = max(min(x - width / 2, self.limit - width), x + cover - width)
        options: list[tuple[float, bool, int, float]] = []
        for level, edge in enumerate(self.edges):
            left = max(wish, edge + min(LABEL_GAP, width))
            line_to_mark = max((edge + 3 - x for edge in self.edges[:level]), default=0.0)
            options.append((max(0.0, left - x + cover, line_to_mark), left > wish, level, left))
        return min(options) if slot.label else (0.0, False, 0, x)


class _Chart:
    """The layout of all rows on a time axis."""

    def __init__(self, rows: list[Row], now: float, limits: tuple[int, int], width: float, levels: int) -> None:
        self.lines = [_Line(row, limits) for row in rows]
        self.duration = now = max([now, *(row.span.latest for row in rows)])  # more marks may have arrived after `now`
        self._left = 30 + max((_width(line.title) for line in self.lines), default=0.0)
        self._scale = width / (now or 1.0)
        self.is_exact = True
        self._places = {0.0: self._left}
        for line in self.lines:
            line.limit = self._left + width + 14
            line.edges = [self._left - 20 if line.title else 2.0] * levels
        self._place()

    @property
    def right(self) -> float:
        edges = [edge for line in self.lines for edge in (line.edge, *line.edges)]
        return max([self.x(self.duration) + RADIUS, *edges])

    def x(self, at: float) -> float:
        """Return the x position for the time `at`."""
        times = [*self._places]
        after = bisect(times, at)
        x = self._places[times[after - 1]] + (at - times[after - 1]) * self._scale
        return min(x, self._places[times[after]]) if after < len(times) else x

    def place_dense(self) -> None:
        """Place the marks of dense lines, and join marks that are close together."""
        for line in self.lines:
            if line.is_dense:
                marks = join_marks(line.span.marks, 3 / self._scale, 640)
                for mark in marks:
                    line.put_bar(mark, self.x(mark.at), self.x(mark.until), len(marks) <= 12)

    def _place(self) -> None:
        starts = (line.span.start for line in self.lines)
        edge = -math.inf
        for at in sorted({0.0, self.duration, *starts, *(at for line in self.lines for at in line.groups)}):
            lines = [line for line in self.lines if at in line.groups]
            exact = self._left + at * self._scale
            x = max([exact, edge, *(line.needed(at) for line in lines)])
            for line in lines:
                x += line.shift(at, x)
            self._places[at] = x
            self.is_exact = self.is_exact and x - exact < 0.5
            for line in lines:
                line.put_group(at, x)
                edge = max(edge, line.edge)


class _Picture:
    """The SVG elements drawn so far, and the y position of the next one."""

    def __init__(self, chart: _Chart) -> None:
        codes = [_width(line.row.title) * 13 / 12 + 48 for line in chart.lines if line.row.lane.is_operator]
        self._chart = chart
        self._width = math.ceil(max([chart.right + 16, 240, *codes]))
        self._parts: list[str] = []
        self._y = 6.0
        self._kinds: set[str] = set()
        self._colours: dict[str, str] = {}
        self._heights: list[float] = []

    def add_rows(self) -> None:
        for line in self._chart.lines:
            if line.row.lane.is_operator and line.row.number == 1:
                self._add_box(line.row.lane.label)
            self._add_line(line)
            if line.row.note:
                self.add_note(line.row.note)

    def add_note(self, text: str) -> None:
        self._add_text(12, self._y + 14, text, "soft")
        self._y += 22

    def add_axis(self) -> None:
        """Draw the time axis, and a faint line with ticks behind each row."""
        duration = self._chart.duration
        if not duration:
            return
        step = next((tick for tick in TICKS if tick >= duration / 5.001), TICKS[-1])
        left, right, edge = self._chart.x(0.0), self._chart.x(duration), -math.inf
        path = "".join(f"M{left:g} {y:g}H{right:g}" for y in self._heights)
        for index in range(int(duration / step + 1e-6) + 1):
            label, x = time_label(round(index * step, 6)), self._chart.x(index * step)
            if x - _width(label) / 2 > edge:
                edge = x + _width(label) / 2 + GAP
                self._add_text(x, self._y + 14, label, "soft middle")
                path += "".join(f"M{x:g} {y - 4:g}v8" for y in self._heights)
        self._parts.insert(0, f'<path class="line faint" d="{path}"/>')
        self._y += 24

    def add_legend(self) -> None:
        """Draw each kind of mark that the diagram contains, with its name."""
        x = 20.0
        for kind, (name, _, _) in _SHAPES.items():
            width = _width(name) * 11 / 12
            if kind in self._kinds:
                if x + 13 + width > self._width - 8:
                    x, self._y = 20.0, self._y + 20
                self._add_marks(kind, "", [_Slot(kind, x=x)], self._y + 12)
                self._add_text(x + 13, self._y + 16, name, "soft small")
                x += 35 + width
        self._y += 28

    def svg(self, title: str, description: str) -> str:
        size = f'width="{self._width}" height="{self._y:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="rxm" viewBox="0 0 {self._width} {self._y:g}" {size}'
        texts = f"<title>{_escape(title)}</title><desc>{_escape(description)}</desc>"
        card = f'<rect class="card" {size} rx="6"/>'
        return "\n".join([f'{head} role="img">{texts}', f"<style>{_STYLE}</style>", card, *self._parts, "</svg>\n"])

    def _add_box(self, code: str) -> None:
        box = f'x="8.5" y="{self._y + 6.5:g}" width="{self._width - 17}" height="27" rx="6"'
        self._parts.append(
            f'<rect {box} fill="currentColor" fill-opacity=".06" stroke="currentColor" stroke-opacity=".3"/>'
        )
        self._add_text(self._width / 2, self._y + 24.5, code, "code")
        self._y += 34

    def _add_line(self, line: _Line) -> None:
        y = self._y + 18 + LEVEL * max((slot.level + 1 for slot in line.slots if slot.label), default=0)
        self._y = y + 16
        self._heights.append(y)
        self._add_text(self._chart.x(0.0) - 16, y + 4, line.title, "end")
        if line.span.outcome == UNUSED:
            return
        end = line.end or self._chart.x(self._chart.duration) + RADIUS
        self._parts.append(f'<path class="line soft" d="M{self._chart.x(line.span.start):g} {y:g}H{end:g}"/>')
        slots = [*line.capsules, *line.slots, *([_Slot("running", x=end)] if line.end is None else [])]
        marks: dict[tuple[str, str], list[_Slot]] = {}
        for slot in slots:
            marks.setdefault((slot.kind, slot.content), []).append(slot)
        for (kind, content), equal in marks.items():
            self._add_marks(kind, content, equal, y)
        self._add_labels(line.slots, y)

    def _add_marks(self, kind: str, content: str, slots: Iterable[_Slot], y: float) -> None:
        """Draw marks that have the same kind and colour."""
        self._kinds.add(kind)
        style = _SHAPES[kind][1] or ("" if content else "soft")
        colour = PALETTE[len(self._colours) % len(PALETTE)]
        paint = f'class="{style}"' if style else f'fill="{self._colours.setdefault(content, colour)}"'
        path = "".join(f"M{slot.x:g} {y:g}{_path(kind, slot.bar)}" for slot in slots)
        self._parts.append(f'<path d="{path}" {paint}/>')

    def _add_labels(self, slots: list[_Slot], y: float) -> None:
        """Draw the labels, and a line from each raised label to its mark."""
        path = ""
        for slot in slots:
            if slot.label:
                base = y - 12 - LEVEL * slot.level
                self._add_text(slot.label_x, base, slot.label, "middle")
                path += f"M{slot.x:g} {base + 4:g}V{y - slot.radius - 1:g}" if slot.level else ""
        if path:
            self._parts.append(f'<path class="line soft" style="stroke-width:1" d="{path}"/>')

    def _add_text(self, x: float, y: float, text: str, style: str) -> None:
        self._parts += [f'<text class="{style}" x="{x:g}" y="{y:g}">{_escape(text)}</text>'] if text else []


def _path(kind: str, bar: float) -> str:
    """Return the outline of a mark, stretched by `bar` pixels."""
    if not bar:
        return _SHAPES[kind][2]
    if kind == "several":
        return f"m{-bar / 2 - 1:g}-6h{bar + 2:g}v12h{-bar - 2:g}z"
    return f"m{-bar / 2:g}-10h{bar:g}a10 10 0 0 1 0 20h{-bar:g}a10 10 0 0 1 0-20z"


def _visible(label: str) -> str:
    """Make leading and trailing spaces visible."""
    leading, trailing = len(label) - len(label.lstrip(" ")), len(label) - len(label.rstrip(" "))
    return "␣" * leading + label.strip(" ") + "␣" * (trailing if trailing < len(label) else 0)


def _escape(text: str) -> str:
    """Escape `text` for SVG, and replace control characters."""
    return html.escape(_CONTROLS.sub("·", text.replace("\n", "↵")))


def _width(text: str) -> float:
    return CHARACTER * sum(2 if east_asian_width(character) in "WF" else 1 for character in text)
