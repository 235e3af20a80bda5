"""Draw cards on a terminal, using rich: https://github.com/Textualize/rich."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from rxllm.display._card import Card, Correction, Note, Row, ToolRow, rows_and_status, truncate
from rxllm.display._markdown import clean
from rxllm.display._plain import Cards, Screen, quote
from rxllm.values import FilePart, SourcePart, TextPart, ThinkingPart

THINKING = 300
"""The maximum length of streaming thinking, in characters. If it is longer, only its end is shown."""


class Terminal(Screen):
    """A terminal. While the stream is running, only the last lines that fit on the screen are shown."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="visible")

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        self._live.start()

    def draw(self, cards: Cards, now: float) -> None:
        lines = self._console.render_lines(_drawn(cards, now), pad=False)[1 - self._console.height :]
        self._live.update(Segments([s for line in lines for s in (*line, Segment.line())]), refresh=True)

    def finish(self, cards: Cards, now: float) -> None:
        self._live.update(_drawn(cards, now), refresh=True)
        self._live.stop()


def _drawn(cards: Cards, now: float) -> RenderableType:
    if None in cards:
        return _card(cards[None], now)
    grid = Table.grid(expand=True)
    for _ in cards:
        grid.add_column(ratio=1)
    grid.add_row(*(Panel(_card(card, now), title=Text(clean(str(label)))) for label, card in cards.items()))
    return grid


def _card(card: Card, now: float) -> RenderableType:
    if card.has_value:
        value = card.value if isinstance(card.value, str) else repr(card.value)
        return Text(clean(value))
    found, texts = rows_and_status(card, now)
    drawn = [line for row in found for line in _row(row, row is found[-1])]
    return Group(*drawn, Text(clean(" · ".join(texts)), style="dim"))


def _row(row: Row, is_last: bool) -> list[RenderableType]:
    match row:
        case TextPart(text=text):
            return [Markdown(clean(text), hyperlinks=False)]
        case ThinkingPart(text=text):
            return [Text(clean(text[-THINKING:]) if is_last else "(thinking)", style="dim italic")]
        case ToolRow():
            return _tool(row)
        case Correction(text=text, used=used):
            return [Text(clean(quote(text, used)), style="bold")]
        case SourcePart(source=source):
            return [Text(clean(str(source.get("title") or source.get("url") or source)), style="dim")]
        case FilePart(file=file):
            return [Text(clean(str(file.get("name") or file.get("mime_type") or "file")), style="dim")]
        case Note(text=text, error=None):
            return [Text(clean(text), style="dim")]
        case Note(error=error):
            return [Text.assemble((type(error).__name__, "bold red"), f": {clean(str(error))}")]
        case _:
            return [Text(repr(row), style="dim")]


_COLOURS = {"done": "green", "failed": "red", "waiting": "yellow", "stopped": "yellow"}


def _tool(row: ToolRow) -> list[RenderableType]:
    latest = row.error or (row.progress if row.result is None else row.result)
    name = (clean(row.call.name), f"bold {_COLOURS.get(row.state, 'blue')}")
    about = " · ".join((row.description, *map(clean, row.facts)))
    inside = [line for inner in row.rows for line in _row(inner, inner is row.rows[-1])]
    inside += [] if latest is None else [Text(_line(str(latest)))]
    return [Text.assemble(name, f" {_line(row.arguments)} ", (about, "dim")), Padding(Group(*inside), (0, 0, 0, 2))]


def _line(text: str) -> str:
    return truncate(clean(" ".join(text.split())), 200)
