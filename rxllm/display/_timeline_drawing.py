"""Draw a timeline as SVG, as a table, and as text.

The picture contains no scripts, and its text takes its colour from the surrounding page. The bars are readable on both
light and dark pages. The ticks in a bar show when text deltas or a tool's progress arrived. If there are too many ticks
to draw, the bar shows their density instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from rxllm.display._card import truncate
from rxllm.display._markdown import clean_line, escape
from rxllm.display._timeline_rows import Bar, Kind, Row, joined
from rxllm.display._words import duration

WIDTH, LEFT, PLOT, RIGHT = 1100, 250, 560, 828
"""The horizontal layout of the picture, in pixels.

`WIDTH` is the width of the picture. `LEFT` is the left edge of the bars, and `PLOT` is their maximum width. `RIGHT` is
the left edge of the text to the right of the bars.
"""

ROW, BAR = 34, 16
"""The heights of a row and of a bar, in pixels."""

MANY = 200

COLOURS: dict[Kind, str] = {
    "waiting": "currentColor",
    "thinking": "#a371f7",
    "text": "#2f81f7",
    "call": "#db6d28",
    "approval": "#d29922",
    "tool": "#1f9d87",
    "failed": "#e5534b",
    "lost": "currentColor",
}
NAMES: dict[Kind, str] = {
    "waiting": "waiting",
    "thinking": "thinking",
    "text": "text, with a tick for each delta",
    "call": "tool call",
    "approval": "waiting for a person",
    "tool": "tool runs",
    "failed": "failed",
    "lost": "cut off",
}
_MARKS: dict[Kind, str] = dict(zip(COLOURS, "░▒█▚?━✗~", strict=True))

_OPACITY: dict[Kind, str] = {"waiting": ".12", "lost": ".3"}

_RED = COLOURS["failed"]
_PAGE = "<style>:root{color:#1f2328}@media(prefers-color-scheme:dark){:root{color:#e6edf3}}</style>"


class Drawn(NamedTuple):
    """The data for a drawing. `rows` contains (depth, row) pairs."""

    title: str
    summary: str
    rows: Sequence[tuple[int, Row]]
    seconds: float
    omitted: int = 0


# Numbers as text


def fine_duration(seconds: float) -> str:
    """Format a duration more precisely than `duration` does.

    >>> [fine_duration(seconds) for seconds in (0.0123, 0.47, 4.83, 75)]
    ['12 ms', '0.47 s', '4.8 s', '1 min 15 s']
    """
    if seconds >= 0.995:
        return duration(seconds)
    return f"{seconds:.2f} s" if seconds >= 0.0995 else f"{seconds * 1000:.0f} ms"


def figures(row: Row) -> str:
    """Return a row's numbers as text, followed by its error or note."""
    usage, rate = row.usage, row.tokens_per_second
    if row.kind == "step":
        texts = ["" if row.ttft is None else f"{fine_duration(row.ttft)} TTFT"]
        texts += [f"{usage.output_tokens:,} tok" if usage.output_tokens else "", f"{rate:,.0f}/s" if rate else ""]
        hidden = sum(bar.tokens for bar in row.bars)
        texts += [f"thinking: ~{hidden:,} tok" if hidden else "", dollars(usage.total_cost)]
    else:
        texts = ["" if row.end is None else fine_duration(row.end - row.start)]
    return joined(*texts, row.error or row.note)


def _details(row: Row) -> str:
    return joined(figures(row), row.change, row.loss)


def dollars(cost: float | None) -> str:
    """Format a cost in dollars. It is rounded to cents, or to two significant digits if it is below $0.10."""
    if cost is None:
        return ""
    return f"${cost:,.2f}" if cost >= 0.1 or not cost else f"${float(f'{cost:.2g}'):f}".rstrip("0")


# SVG


def svg_of(drawn: Drawn, *, is_file: bool = False) -> str:
    """Return the picture as SVG. If `is_file` is True, its text colour follows the viewer's light or dark mode."""
    top = (62 if drawn.title else 36) + 16
    bottom = top + ROW * max(1, len(drawn.rows)) + 4
    height = bottom + 58 + (16 if drawn.omitted else 0)
    scale = PLOT / (drawn.seconds or 1.0)
    body = [*_heading(drawn), *_axis(drawn.seconds, scale, top, bottom)]
    for index, (depth, row) in enumerate(drawn.rows):
        body += _row(depth, row, top + ROW * index + ROW / 2, scale, drawn.seconds)
    if drawn.omitted:
        body.append(f'<text x="24" y="{bottom + 14}" opacity=".65">{drawn.omitted:,} more rows</text>')
    body += _legend(drawn.rows, height - 14)
    style = _PAGE if is_file else ""
    described = f"<title>{_escape(drawn.title or 'Timeline')}</title><desc>{_escape(text_of(drawn))}</desc>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui,sans-serif" font-size="12" fill="currentColor">{described}{style}'
        f"{''.join(body)}</svg>"
    )


def _heading(drawn: Drawn) -> Iterator[str]:
    if drawn.title:
        title = truncate(drawn.title.partition("\n")[0], 100)
        yield f'<text x="24" y="36" font-size="17" font-weight="600">{_escape(title)}</text>'
    y = 60 if drawn.title else 34
    yield f'<text x="24" y="{y}" font-size="13" opacity=".65">{_escape(truncate(drawn.summary, 150))}</text>'


def _axis(seconds: float, scale: float, top: float, bottom: float) -> Iterator[str]:
    step = tick_step(seconds)
    lines: list[str] = []
    count = int(seconds / step + 1e-6) if seconds else 0
    for number in range(count + 1):
        x = LEFT + number * step * scale
        lines.append(f"M{x:.1f} {top}V{bottom}")
        label = f"{number * step:g} s" if step >= 0.1 or not number else f"{number * step * 1000:g} ms"
        yield f'<text x="{x:.1f}" y="{bottom + 18}" font-size="11" text-anchor="middle" opacity=".6">{label}</text>'
    yield f'<path d="{"".join(lines)}" stroke="currentColor" opacity=".15" fill="none"/>'


def tick_step(seconds: float) -> float:
    """Return the distance in seconds between the lines of an axis. The axis then has four to eight lines.

    >>> [tick_step(seconds) for seconds in (0.03, 4.8, 60, 500)]
    [0.005, 1, 10, 100]
    """
    step = 0.0001
    while True:
        for factor in (1, 2, 5):
            if seconds / (step * factor) < 8:
                return round(step * factor, 6) if step < 0.5 else round(step * factor)
        step *= 10


def _row(depth: int, row: Row, y: float, scale: float, now: float) -> Iterator[str]:
    x = 24 + 20 * min(depth, 6)
    kind: Kind = "failed" if row.error else "tool" if row.kind == "tool" else "text"
    colour = "currentColor" if row.kind in ("lost", "stream") else COLOURS[kind]
    yield f'<path d="{_mark(row, x + 5, y)}" fill="{colour}" opacity="{0.5 if row.kind == "lost" else 1}"/>'
    room = int((LEFT - x - 26) / 6.6)
    name = truncate(row.name, room)
    about = truncate(row.about.partition("\n")[0], max(0, room - len(name) - 2)) if room - len(name) > 4 else ""
    about = f'<tspan dx="7" font-size="12" font-weight="400" opacity=".65">{_escape(about)}</tspan>' if about else ""
    above = y + (-2.5 if row.change else 4.5)
    yield f'<text x="{x + 18}" y="{above}" font-size="13" font-weight="600">{_escape(name)}{about}</text>'
    for bar in row.bars:
        yield from _bar(bar, y - BAR / 2, scale, now)
    if row.first is not None:
        yield f'<path d="M{LEFT + row.first * scale:.1f} {y - 12}v24" stroke="currentColor" stroke-width="1.5"/>'
    if text := figures(row):
        look = f'fill="{_RED}"' if row.error else 'opacity=".65"'
        shown = f"{_escape(truncate(text, 44))}<title>{_escape(text)}</title>"
        yield f'<text x="{RIGHT}" y="{y + (-3 if row.loss else 4)}" {look}>{shown}</text>'
    for left, second, length in ((x + 18, row.change, room), (RIGHT, row.loss, 44)):
        if second:
            shown = f"{_escape(truncate(second, length))}<title>{_escape(second)}</title>"
            yield f'<text x="{left}" y="{y + 11}" font-size="11" opacity=".85">{shown}</text>'


def _mark(row: Row, x: float, y: float) -> str:
    if row.kind == "tool":
        return f"M{x - 5} {y}l5 -5l5 5l-5 5z"
    if row.kind == "step":
        return f"M{x - 5} {y}a5 5 0 1 1 10 0a5 5 0 1 1 -10 0z"
    if row.kind == "lost":
        return f"M{x - 4} {y - 1}h8v2h-8z"
    return f"M{x - 4} {y - 4}h8v8h-8z"


def _bar(bar: Bar, y: float, scale: float, now: float) -> Iterator[str]:
    end = now if bar.end is None else bar.end
    x = LEFT + min(bar.start, now) * scale
    width = max(2.0, LEFT + min(end, now) * scale - x)  # a note's times may be wrong
    span = f"{fine_duration(bar.start)} to {fine_duration(end)}, {fine_duration(end - bar.start)}"
    title = ": ".join(filter(None, (f"{NAMES[bar.kind].partition(',')[0]}, {span}", bar.title)))
    failed = bar.kind == "lost" and bar.title not in ("", "disposed")
    colour = _RED if failed else COLOURS[bar.kind]
    look = f'fill="{colour}" fill-opacity="{_OPACITY.get(bar.kind, 1)}"'
    box = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3" {look}/>'
    yield f"<g><title>{_escape(title)}</title>{box}"
    if bar.kind == "waiting":
        yield f'<path d="{_hatch(x, y, width)}" stroke="currentColor" opacity=".35"/>'
    elif bar.kind == "lost":
        yield f'<path d="M{x + width:.1f} {y - 4}v{BAR + 8}" stroke="{colour}" stroke-width="2"/>'
    elif bar.ticks:
        yield from _ticks(bar, x, width, y, scale)
    yield "</g>"


def _hatch(x: float, y: float, width: float) -> str:
    """Return slanted lines that fill a bar."""
    slant = BAR / 2
    lines: list[str] = []
    for end in range(4, int(width + slant), 7):
        left, right = max(end - slant, 0.0), min(float(end), width)
        low, high = y + BAR - (left - end + slant) * 2, y + (end - right) * 2
        lines.append(f"M{x + left:.1f} {low:.1f}L{x + right:.1f} {high:.1f}")
    return "".join(lines)


def _ticks(bar: Bar, x: float, width: float, y: float, scale: float) -> Iterator[str]:
    if len(bar.ticks) <= max(1.0, width / 3):
        lines = "".join(f"M{LEFT + at * scale:.1f} {y + 2}v{BAR - 4}" for at in bar.ticks)
        yield f'<path d="{lines}" stroke="#fff" stroke-opacity=".7"/>'
        return
    columns = int(width / 3) + 1
    edges = [bisect_left(bar.ticks, bar.start + column * 3 / scale) for column in range(columns)]
    counts = [after - before for before, after in pairwise([*edges, len(bar.ticks)])]
    most = max(counts)
    for level in range(1, 5):  # quarters of the maximum density
        paths = (
            f"M{x + column * 3:.1f} {y + 2}h2v{BAR - 4}h-2z"
            for column, count in enumerate(counts)
            if count > 0 and -(-4 * count // most) == level
        )
        if path := "".join(paths):
            yield f'<path d="{path}" fill="#fff" fill-opacity="{level * 0.2:.1f}"/>'


def _legend(rows: Iterable[tuple[int, Row]], y: float) -> Iterator[str]:
    found = {bar.kind for _, row in rows for bar in row.bars}
    x = 24.0
    for kind, name in NAMES.items():
        if kind not in found:
            continue
        look = f'fill="{COLOURS[kind]}" fill-opacity="{_OPACITY.get(kind, 1)}"'
        yield f'<rect x="{x}" y="{y - 9}" width="12" height="10" rx="2" {look}/>'
        if kind == "waiting":
            yield f'<path d="M{x + 2} {y + 1}l5 -10M{x + 7} {y + 1}l5 -10" stroke="currentColor" opacity=".35"/>'
        yield f'<text x="{x + 18}" y="{y}" font-size="11" opacity=".65">{name}</text>'
        x += 18 + 5.9 * len(name) + 22


def _escape(text: str) -> str:
    return escape(text).replace("\ufffe", "�").replace("\uffff", "�")  # not allowed in XML


# Text


def table_of(drawn: Drawn) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("", "starts", "takes", "figures"))
    lines: list[str] = []
    for depth, row in drawn.rows:
        name = truncate(joined(row.name, row.about), 80)
        taken = (drawn.seconds if row.end is None else row.end) - row.start
        cells = (name, fine_duration(row.start), fine_duration(taken), _details(row))
        first, *others = map(escape, cells)
        line = f'<td style="padding-inline-start:{depth + 0.5}em">{first}</td>'
        lines.append(f"<tr>{line}{''.join(f'<td>{cell}</td>' for cell in others)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def text_of(drawn: Drawn, width: int = 40) -> str:
    """Return the timeline as text, with bars of `width` characters."""
    names = [truncate("  " * depth + " ".join(filter(None, (row.name, row.about))), 30) for depth, row in drawn.rows]
    margin = max(map(len, names), default=0)
    lines = [drawn.title.partition("\n")[0], drawn.summary]
    for name, (_, row) in zip(names, drawn.rows, strict=True):
        lines.append(f"{name:{margin}}  {_bars_text(row, drawn.seconds, width)}  {_details(row)}".rstrip())
    if drawn.omitted:
        lines.append(f"{drawn.omitted:,} more rows")
    found = {bar.kind for _, row in drawn.rows for bar in row.bars}
    lines.append("  ".join(f"{_MARKS[kind]} {NAMES[kind].partition(',')[0]}" for kind in COLOURS if kind in found))
    return clean_line("\n".join(filter(None, lines)))


def _bars_text(row: Row, seconds: float, width: int) -> str:
    cells = [" "] * width
    for bar in row.bars:
        begin = min(width - 1, int(bar.start / (seconds or 1.0) * width))
        end = round((seconds if bar.end is None else bar.end) / (seconds or 1.0) * width)
        for column in range(begin, min(width, max(begin + 1, end))):
            cells[column] = _MARKS[bar.kind]
    return "".join(cells)
