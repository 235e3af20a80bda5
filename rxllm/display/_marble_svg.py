"""A marble diagram as SVG: one small picture for light and dark pages, which needs nothing else."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from unicodedata import east_asian_width

from rxllm.display._marble_lanes import Lane, Mark, Span, clipped, joined
from rxllm.display._marble_text import seconds

WIDTH, MARGIN = 680, 70  # as wide as a cell on a small screen; at the right is room for the labels of what comes last
CHARACTER = 6.7
"""How wide a character is; the font is monospaced."""

STACK = 15
"""How far apart marks of the same time are, one above the other."""

LABEL = 30
"""How many characters the label of a lane may have."""

MAX_ROWS, MAX_STACK, MAX_LABELS = 30, 10, 80
"""A row with more marks than labels has none, and there near marks are joined: a burst is a bar."""

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
"""The colour and the path of each kind, around its place."""

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

Box = tuple[float, float, float, float]
Place = tuple[float, float, Mark]


def draw_svg(lanes: Sequence[Lane], now: float) -> str:
    """Return the picture of the `lanes`. `now` is the end of what is still running."""
    rows = [(lane.label, spans) for lane in lanes for spans in lane.rows()]
    picture = _Picture(36 + CHARACTER * max((_width(clipped(label, LABEL)) for label, _ in rows), default=0), now)
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
    """The elements so far, and the height `y` below them."""

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
            until += 12 * (until in columns)  # the end is beside what comes with it
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
        self.add_text(12, y + 4, clipped(label, LABEL))

    def grid(self) -> list[str]:
        """Add the times below the rows, and return the lines, which lie behind them."""
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
        """Return the marks by the pixel where they stand."""
        if len(marks) > MAX_LABELS:
            marks = joined(marks, 3 / self._second, WIDTH)
        columns: dict[int, list[Mark]] = {}
        for mark in marks:
            column = columns.setdefault(self._x(mark.at), [])
            column.append(mark)
            if len(column) > MAX_STACK:
                column[-2:] = joined(column[-2:], math.inf, 0)
        return columns

    def _add_labels(self, places: list[Place], taken: list[Box], y: int) -> None:
        """Add the labels that fit, in full or clipped: above or below a mark, at the right of stacked ones."""
        taken += [(x - 6, x + 6 + self._bar(mark), at - 6, at + 6) for x, at, mark in places]
        stacked = {x for x, at, _ in places if at < y}
        for x, at, mark in sorted(places, key=lambda place: place[0]) if len(places) <= MAX_LABELS else ():
            text = _ends_shown(mark.label) if mark.size == 1 else f"{mark.size} x"
            for label in (clipped(text, 24), clipped(text, 10), clipped(text, 5)):
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


def _ends_shown(text: str) -> str:
    """Return the text with spaces at its ends that are seen."""
    return re.sub("^ +| +$", lambda spaces: "␣" * len(spaces[0]), text)


def _clean(text: str) -> str:
    """Return the text without what SVG forbids, and what would turn the text around it."""
    return _CONTROLS.sub("·", text.replace("\n", "↵"))


def _width(text: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)
