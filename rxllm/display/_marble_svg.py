"""A marble diagram as SVG."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from unicodedata import east_asian_width

from rxllm.display._marble_lanes import MIXED, Kind, Lane, Mark, Span, clipped, joined
from rxllm.display._marble_text import seconds

WIDTH = 760
CHARACTER = 6.7
"""How wide a character is; the font is monospaced."""

STACK = 15
"""How far apart marks of the same time are, one above the other."""

MAX_STACK = 10
MAX_LABELS = 80
"""A row with more marks than that has no labels: they would not fit."""

MAX_ROWS = 30

_STYLE = """
.rxm{--bg:#fff;--fg:#1f2328;--soft:#8c959f;--line:#d0d7de;--text:#0969da;--think:#8250df;--call:#bc4c00;--tool:#1b7c83;
--step:#1a7f37;--bad:#cf222e;font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media(prefers-color-scheme:dark){.rxm{--bg:#0d1117;--fg:#e6edf3;--soft:#8b949e;--line:#30363d;--text:#58a6ff;
--think:#bc8cff;--call:#f0883e;--tool:#39c5cf;--step:#3fb950;--bad:#ff7b72}}
.rxm text{fill:var(--fg);white-space:pre}.rxm .soft{fill:var(--soft)}
.rxm path{stroke-width:1.6;stroke:var(--c);fill:var(--c)}.rxm .hollow{fill:var(--bg)}.rxm .line{fill:none}
"""

_SHAPES: dict[str, tuple[str, str]] = {
    "text": ("text", "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z"),
    "thinking": ("think", "m0-6l6 10h-12z"),
    "tool call": ("call", "m0-6l6 6-6 6-6-6z"),
    "tool": ("tool", "m-5-5h10v10h-10z"),
    "message": ("soft", "m-2-6h4v12h-4z"),
    "step": ("step", "m-6 0l3-5h6l3 5-3 5h-6z"),
    "error": ("bad", "m-6-3l3 3-3 3 3 3 3-3 3 3 3-3-3-3 3-3-3-3-3 3-3-3z"),
    "value": ("fg", "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z"),
    MIXED[0]: ("fg", ""),
    "end": ("fg", "m0-11v22"),
    "dispose": ("bad", "m0-11v22m-3.5-19l7 7m0-7l-7 7"),
    "failed": ("bad", "m-7-7l14 14m0-14l-14 14"),
}
"""The colour and the path of each kind, around its place."""

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


class _Box(NamedTuple):
    left: float
    right: float
    top: float
    bottom: float

    def overlaps(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


class _Scale(NamedTuple):
    """From seconds to pixels."""

    left: float
    pixels: float
    duration: float

    def x(self, at: float) -> int:
        return round(self.left + self.pixels * at / self.duration)

    def ticks(self) -> list[float]:
        rough = self.duration / 8
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        return [round(index * step, 9) for index in range(int(self.duration / step + 1e-6) + 1)]


def draw_svg(lanes: Sequence[Lane], now: float) -> str:
    """Return the picture of the `lanes`. `now` is the end of what is still running."""
    rows = [(lane.label if not index else "", spans) for lane in lanes for index, spans in enumerate(lane.rows())]
    left = 24 + CHARACTER * max((_width(clipped(label, 24)) for label, _ in rows), default=0)
    scale = _Scale(left, WIDTH - left - 28, now or 1.0)
    kinds: dict[Kind, None] = {}
    parts: list[str] = []
    y = 6.0
    for label, spans in rows[:MAX_ROWS]:
        drawn, height = _row(label, spans, scale, y, kinds)
        parts += drawn
        y += height
    if len(rows) > MAX_ROWS:
        parts.append(_text(12, y + 12, f"and {len(rows) - MAX_ROWS} more", "soft"))
        y += 18
    axis, y = list(_axis(scale, y)), y + 30
    legend, y = _legend(kinds, y)
    names = html.escape(_clean(", ".join(label for label, _ in rows[:MAX_ROWS] if label)))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="rxm" width="{WIDTH}" height="{y:g}" '
    head += f'viewBox="0 0 {WIDTH} {y:g}" role="img"><title>Marble diagram of {names}</title><style>{_STYLE}</style>'
    card = f'<rect width="{WIDTH}" height="{y:g}" rx="6" fill="var(--bg)"/>'
    return "\n".join([head, card, *axis, *parts, *legend, "</svg>\n"])


def _row(
    label: str, spans: list[Span], scale: _Scale, top: float, kinds: dict[Kind, None]
) -> tuple[list[str], float]:
    """Return the elements of a row, and its height. The `kinds` that it has are added."""
    columns = _columns([mark for span in spans for mark in span.marks], scale)
    highest = max((len(column) for column in columns.values()), default=1)
    y = top + 24 + STACK * max(0, highest - 1)
    lines = [f"M{scale.x(0)} {y:g}H{WIDTH - 20}"]
    parts = [_path("line", ["".join(lines)], " line", ' stroke-dasharray="1 4"')]
    shapes: dict[Kind, list[str]] = {}
    for span in spans:
        until = scale.x(scale.duration if span.until is None else span.until)
        parts.append(_path("soft", [f"M{scale.x(span.start)} {y:g}H{until}"], " line"))
        if span.until is None:
            parts.append(_path("soft", [f"M{until} {y:g}m0-4l8 4-8 4z"]))
        else:
            name = {"error": "failed"}.get(span.outcome, span.outcome)
            shapes.setdefault((name, False), []).append(_shape(name, until, y))
    places = [(x, y - STACK * level, mark) for x, column in columns.items() for level, mark in enumerate(column)]
    for x, height, mark in places:
        width = scale.x(mark.until) - scale.x(mark.at)
        bar = f"M{x} {height - 5:g}h{width}a5 5 0 0 1 0 10h-{width}a5 5 0 0 1 0-10z"
        shapes.setdefault(mark.kind, []).append(bar if mark.count > 1 else _shape(mark.kind[0], x, height))
    for kind, paths in shapes.items():
        colour = _SHAPES[kind[0]][0]
        parts.append(_path(colour, paths, " hollow" if kind[1] else "" if kind[0] not in ("end", "dispose", "failed") else " line"))
    kinds.update(dict.fromkeys(shapes))
    places += [(scale.x(span.until or 0), y, span.error) for span in spans if span.error is not None]
    parts += _labels(places, scale, y)
    parts.append(_text(12, y + 4, clipped(label, 24)))
    return parts, y - top + 24


def _columns(marks: list[Mark], scale: _Scale) -> dict[int, list[Mark]]:
    """Return the marks by the pixel where they stand; near ones are joined where there are many."""
    pixel = scale.duration / scale.pixels
    if len(marks) > MAX_LABELS:
        marks = joined(marks, pixel * 3, WIDTH)
    columns: dict[int, list[Mark]] = {}
    for mark in marks:
        column = columns.setdefault(scale.x(mark.at), [])
        if len(column) >= MAX_STACK:
            mark, column[-1:] = joined([column[-1], mark], math.inf, 0)[0], []
        column.append(mark)
    return columns


def _labels(places: list[tuple[int, float, Mark]], scale: _Scale, y: float) -> Iterator[str]:
    """Yield the labels that fit: above a mark, below it, or at its right, in full or clipped."""
    if len(places) > MAX_LABELS:
        return
    taken = [_Box(x - 6, x + 6 + scale.x(mark.until) - scale.x(mark.at), at - 6, at + 6) for x, at, mark in places]
    stacked = {x for x, at, _ in places if at < y}
    for x, at, mark in sorted(places, key=lambda place: place[0]):
        text = f"×{mark.count}" if mark.count > 1 else _clean(mark.label).strip(" ") and _shown(mark.label)
        for size in (24, 10, 5, 3):
            label = clipped(text, size)
            width = CHARACTER * _width(label)
            middle = x + (scale.x(mark.until) - scale.x(mark.at) - width) / 2
            above, below = (middle, at - 10), (middle, at + 18)
            spots = [(x + 9.0, at + 4)] if x in stacked else [above, below]
            fits = (
                (spot, box)
                for spot in spots
                for box in [_Box(spot[0], spot[0] + width + 3, spot[1] - 9, spot[1] + 3)]
                if box.right < WIDTH - 2 and not any(box.overlaps(other) for other in taken)
            )
            if found := next(fits, None):
                (left, base), box = found
                taken.append(box)
                yield _text(left, base, label)
                break


def _axis(scale: _Scale, y: float) -> Iterator[str]:
    ticks = scale.ticks()
    yield _path("line", [f"M{scale.x(tick)} 8V{y + 6:g}" for tick in ticks], " line", ' stroke-width="1"')
    for tick in ticks:
        label = seconds(tick)
        yield _text(scale.x(tick) - CHARACTER * len(label) / 2, y + 19, label, "soft")


def _legend(kinds: dict[Kind, None], y: float) -> tuple[list[str], float]:
    parts: list[str] = []
    x = 20.0
    entries = [(name, complete) for name in _SHAPES for complete in (False, True) if (name, complete) in kinds and name != "message"]
    for name, complete in entries:
        label = f"{name}, complete" if complete else name
        if x + CHARACTER * (len(label) + 3) > WIDTH:
            x, y = 20.0, y + 20
        colour = _SHAPES[name][0]
        parts.append(_path(colour, [_shape(name, round(x), y + 10)], " hollow" if complete else ""))
        parts.append(_text(x + 11, y + 14, label, "soft"))
        x += CHARACTER * (len(label) + 4) + 6
    return parts, y + (26 if entries else 4)


def _shape(name: str, x: int, y: float) -> str:
    return f"M{x} {y:g}{_SHAPES[name][1]}"


def _path(colour: str, paths: list[str], cls: str = "", more: str = "") -> str:
    of_class = f' class="{cls.strip()}"' if cls else ""
    return f'<path{of_class} style="--c:var(--{colour})" d="{"".join(paths)}"{more}/>'


def _text(x: float, y: float, text: str, cls: str = "") -> str:
    of_class = f' class="{cls}"' if cls else ""
    return f'<text{of_class} x="{x:.0f}" y="{y:.0f}">{html.escape(_clean(text))}</text>'


def _shown(text: str) -> str:
    """Return a label whose spaces at its ends are seen."""
    inner = text.strip(" ")
    before = len(text) - len(text.lstrip(" "))
    return "␣" * before + inner + "␣" * (len(text) - before - len(inner))


def _clean(text: str) -> str:
    """Return the text without what SVG forbids, and what would turn the text around it."""
    return _CONTROLS.sub("·", text.replace("\n", "↵"))


def _width(text: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)
