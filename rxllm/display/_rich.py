"""Draw cards in a terminal with rich.

rich redraws the last lines of the output, which are called the live part here. It cannot replace lines that have
scrolled out of the window. This leads to the following rules:

* Finished rows and paragraphs are printed once, above the live part.
* The live part is always shorter than the window.
* Each redraw is a single write, so the terminal never shows a half-drawn card.
* Side-by-side cards stay live until all of them have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import dropwhile, pairwise, takewhile
from textwrap import wrap
from typing import Any, ClassVar, cast

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import CodeBlock, Heading, Markdown, TableElement
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from rxllm.display._card import Card, Correction, Note, Row, ToolRow, rows_and_status, truncate
from rxllm.display._markdown import clean_line
from rxllm.display._plain import Cards, Screen, quote
from rxllm.values import FilePart, SourcePart, TextPart, ThinkingPart

THINKING = 300
"""The maximum number of characters of thinking to show while it is streaming."""

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

_COLOURS = {"done": "green", "failed": "red", "waiting": "yellow", "stopped": "yellow"}

# If HTML were enabled, rich would drop it, including the `<int>` in `List<int>`.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class Terminal(Screen):
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True, vertical_overflow="visible")
        self._printed: list[Any] = []
        # The next row is the first row that is not in `_printed`. If a part of its text has already been printed,
        # `_start` is that part.
        self._start = ""

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        self._live.start()

    def draw(self, cards: Cards, now: float) -> None:
        with self._console:  # buffers the output until the end of the block
            rest = self._print_settled(cards, now)
            lines = self._console.render_lines(rest, pad=False)[-max(1, self._console.height - 2) :]
            # The cursor is left on an empty line, so that keystrokes do not move the live part.
            segments = [segment for line in lines for segment in (*line, Segment.line())]
            self._live.update(Group(Segments(segments), Text()), refresh=True)

    def finish(self, cards: Cards, now: float) -> None:
        with self._console:
            rest = self._print_settled(cards, now)
            self._live.update("")
            self._live.stop()
            self._console.print(rest)

    def _print_settled(self, cards: Cards, now: float) -> RenderableType:
        """Print the finished rows above the live part, and return what is still live."""
        card = cards.get(None)
        if card is None or card.has_value:
            return _drawn(cards, now)
        found, texts = rows_and_status(card, now)
        settled, rest = self._take_settled(_shortened(found))
        if settled:
            # Clear the live part first, because lines that are pushed out of the window cannot be replaced.
            self._live.update("", refresh=True)
            self._console.print(Group(*_stack(settled, next(iter(rest), None))))
        return Group(*_stack(rest), _Status(card, texts, now))

    def _take_settled(self, rows: list[Row]) -> tuple[list[Row], list[Row]]:
        """Return the finished rows that have not been printed yet, and the rows that are still live."""
        count, keys = len(self._printed), [*map(_key, rows)]
        if keys[:count] != self._printed or not _text(rows[count:]).startswith(self._start):
            count, self._start = 0, ""  # the step was restarted
        rest = rows[count:]
        if self._start:
            rest[0] = TextPart(_text(rest)[len(self._start) :])
        settled = [row for row, _ in takewhile(lambda pair: all(map(_is_settled, pair)), pairwise(rest))]
        self._printed = keys[: count + len(settled)]
        self._start = "" if settled else self._start
        rest = rest[len(settled) :]
        if start := _settled_text(_text(rest)):
            self._start += start
            settled.append(TextPart(start))
            rest[0] = TextPart(_text(rest)[len(start) :])
        return settled, rest


def _shortened(rows: Sequence[Row]) -> list[Row]:
    """Return `rows` with cleaned text. Thinking is replaced with a note unless it is in the last row."""
    shown: list[Row] = []
    for row in rows:
        if isinstance(row, TextPart):
            shown.append(TextPart(clean_line(row.text)))
        elif isinstance(row, ThinkingPart) and row is not rows[-1]:
            shown.append(Note("(thinking)"))
        else:
            shown.append(row)
    return shown


def _key(row: Row) -> Any:
    return row.call.id if isinstance(row, ToolRow) else row


def _is_settled(row: Row) -> bool:
    return not isinstance(row, ToolRow) or (row.state in ("done", "failed") and bool(row.result or row.rows))


def _text(rows: Sequence[Row]) -> str:
    return rows[0].text if rows and isinstance(rows[0], TextPart) else ""


def _settled_text(text: str) -> str:
    """Return the Markdown `text` without its last block, which is still unfinished.

    >>> _settled_text("One.\\n\\n* two\\n* three")
    'One.\\n\\n'
    """
    # An unfinished line "2" may still become "2.", which would be another item in the list above it.
    starts = [token.map[0] for token in _PARSER.parse(text) if token.level == 0 and token.map]
    lines = text.split("\n")
    starts = [start for start in starts if start < len(lines) - 1]
    return "".join(f"{line}\n" for line in lines[: starts[-1]]) if starts else ""


def _drawn(cards: Cards, now: float) -> RenderableType:
    if None in cards:
        return _card(cards[None], now)
    grid = Table.grid(expand=True)
    for _ in cards:
        grid.add_column(ratio=1)
    grid.add_row(*(Panel(_card(card, now), title=Text(clean_line(str(label)))) for label, card in cards.items()))
    return grid


def _card(card: Card, now: float) -> RenderableType:
    if card.has_value:
        value = card.value if isinstance(card.value, str) else repr(card.value)
        return Text(clean_line(value))
    found, texts = rows_and_status(card, now)
    return Group(*_stack(_shortened(found)), _Status(card, texts, now))


def _stack(rows: Sequence[Row], below: Row | None = None) -> list[RenderableType]:
    """Draw `rows`, with an empty line after each row unless the row and the next one are both tools."""
    drawn: list[RenderableType] = []
    for row, following in zip(rows, [*rows[1:], below], strict=False):
        drawn += _row(row)
        if not (isinstance(row, ToolRow) and isinstance(following, ToolRow)):
            drawn.append(Text())
    return drawn


class _Status:
    """The status line. In a narrow window, the line is broken between its parts."""

    def __init__(self, card: Card, texts: list[str], now: float) -> None:
        self._texts = [clean_line(text) for text in texts]
        self._style = "" if card.look == "done" else f"not dim {_COLOURS.get(card.look, 'blue')}"
        if card.look == "running":
            self._texts[0] = f"{_SPINNER[int(now * 12) % len(_SPINNER)]} {self._texts[0]}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        joined = "\0· ".join(text.replace(" ", "\0") for text in self._texts)
        text = Text("\n".join(wrap(joined, options.max_width, break_on_hyphens=False)).replace("\0", " "), "dim")
        text.stylize(self._style, 0, len(self._texts[0]))
        yield text


def _row(row: Row) -> list[RenderableType]:
    match row:
        case TextPart(text=text):
            return [_Markdown(text)]
        case ThinkingPart(text=text):
            end = text if len(text) <= THINKING else f"…{text[-THINKING:].partition(' ')[2]}"
            return [Text(clean_line(end) or "(thinking)", style="dim italic")]
        case ToolRow():
            return _tool(row)
        case Correction(text=text, used=used):
            return [Text(clean_line(quote(text, used)), style="bold")]
        case SourcePart(source=source):
            return [Text(clean_line(str(source.get("title") or source.get("url") or source)), style="dim")]
        case FilePart(file=file):
            return [Text(clean_line(str(file.get("name") or file.get("mime_type") or "file")), style="dim")]
        case Note(text=text, error=None):
            return [Text(clean_line(text), style="dim")]
        case Note(error=error):
            return [Text.assemble((type(error).__name__, "bold red"), f": {clean_line(str(error))}")]
        case _:
            return [Text(repr(row), style="dim")]


def _tool(row: ToolRow) -> list[RenderableType]:
    latest = row.error or (row.progress if row.result is None else row.result)
    name = (clean_line(row.call.name), f"bold {_COLOURS.get(row.state, 'blue')}")
    about = " · ".join((row.description, *map(clean_line, row.facts)))
    inside = [line for inner in _shortened(row.rows) for line in _row(inner)]
    inside += [] if latest is None else [Text(_line(str(latest)))]
    return [Text.assemble(name, f" {_line(row.arguments)} ", (about, "dim")), Padding(Group(*inside), (0, 0, 0, 2))]


def _line(text: str) -> str:
    return truncate(clean_line(" ".join(text.split())), 200)


class _Code(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax(str(self.text).rstrip(), self.lexer_name, theme="ansi_dark", word_wrap=True)
        yield Padding(code, (0, 0, 0, 2))


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar = {}


class _Table(TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            cast(Table, table).show_edge = False
            yield table


class _Markdown(Markdown):
    elements: ClassVar = Markdown.elements | {"fence": _Code, "heading_open": _Heading, "table_open": _Table}

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = _PARSER.parse(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return dropwhile(lambda item: item == Segment.line(), super().__rich_console__(console, options))
