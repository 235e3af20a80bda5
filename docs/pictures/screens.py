"""The pictures of the README that are drawn without a browser: a card of a notebook, and a terminal."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from html import escape, unescape

from rich.console import Console

import rxllm
from rxllm import ChatResult, Event, Stream, ToolCall, tool
from rxllm.display import Showing
from rxllm.display._plain import Cards
from rxllm.display._rich import Terminal
from rxllm.display._rich import _drawn as drawn_cards  # pyright: ignore[reportPrivateUsage]

WIDTH = 420


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    time.sleep(0.2)
    return "18 °C, clear"


def chat() -> Stream[Event]:
    """Return a chat whose model asks a tool, and answers with what it said."""
    answer = ["Yes and no: it is **18 °C** and clear in Lima. ", "Leave the umbrella, take a jacket."]
    model = rxllm.Fake([("delay", 0.4), ToolCall("c1", "weather", {"city": "Lima"})], answer)
    return rxllm.stream(model, "What do I need for an evening in Lima?", tools=[weather])


def card(height: int = 300) -> str:
    """Return the card of the result, as a notebook shows it, in an SVG."""
    result = chat().pipe(rxllm.operators.to_chat_result()).run()
    assert isinstance(result, ChatResult)
    html = re.sub(r"&(?!(?:amp|lt|gt|quot|apos|#\d+);)\w+;", lambda found: escape(unescape(found[0])), _html(result))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' role="img"><title>The card of a chat with a tool.</title><style>.page{background:#fff;color:#1f2328;'
        "font:14px system-ui,sans-serif}@media(prefers-color-scheme:dark){.page{background:#0d1117;color:#e6edf3}}"
        f'</style><foreignObject width="{WIDTH}" height="{height}"><div xmlns="http://www.w3.org/1999/xhtml"'
        f' class="page">{html}</div></foreignObject></svg>\n'
    )


def _html(result: ChatResult) -> str:
    return getattr(result, "_repr_html_")()  # noqa: B009


class _Last(Terminal):
    """A terminal that is drawn once, when the stream has ended: frames that were replaced are not part of a picture."""

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None: ...

    def draw(self, cards: Cards, now: float) -> None: ...

    def finish(self, cards: Cards, now: float) -> None:
        self._console.print(drawn_cards(cards, now))


def terminal() -> str:
    """Return what `rxllm.show` leaves on a terminal, as an SVG."""
    console = Console(record=True, width=58, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    Showing(chat(), [], _Last(console)).run()
    svg = console.export_svg(title="rxllm.show(...)", unique_id="terminal")
    # These fonts would be loaded from elsewhere; the comment names rich.
    return re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)


def without_times(svg: str) -> str:
    """Return the picture without the seconds that it took, which differ in each run."""
    return re.sub(r"\d+\.\d+(?=&#160;s)", "", svg)
