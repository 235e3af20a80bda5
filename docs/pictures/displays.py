"""Take screenshots of every state of the displays: ``python -m docs.pictures.displays FOLDER [NAME ...]``.

Each display is drawn on a light page under a dark system and on a dark page under a light system, 375 and 1,280 pixels
wide, by Debian's chromium; ``pip install -e '.[browser]'`` installs the rest. The pictures are for looking at. They are
not kept in the repository. A display with the name ``"card-error"`` is a function in `DISPLAYS` that returns its HTML.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from docs.pictures import run
from rxllm.display._card import Card
from rxllm.display._html import cards_html
from rxllm.display._values import value_html
from rxllm.events import (
    AskUserRequested,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
    SourceAdded,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolProgress,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.values import AdapterError, Message, Thread, ToolError, Usage, assistant, user
from tests import pictures

WIDTHS = (375, 1280)
PAGES = {"light": ("#ffffff", "#1f2328"), "dark": ("#0d1117", "#e6edf3")}
"""The background and the text colour of each page. The system always prefers the other one."""

MODEL = MessageStarted(Message("assistant", metadata={"model": "gpt-5-mini"}))
ENDED = (UsageUpdated(Usage(412, 96, total_cost=0.00123)), MessageCompleted(Message("assistant"), "stop"))
BUSY = AdapterError(
    "rate_limited",
    "the provider allows 60 requests a minute; wait 3 s, or pass retry=RetryPolicy(max_attempts=5)",
    provider="openai",
    status=429,
    retry_after=3.0,
)

TABLE = """Here are the four largest moons:

| Moon | Discovered by | Mean radius (km) | Orbital period | Surface | Notable missions |
|---|---|---:|---|---|---|
| Ganymede | Galileo Galilei, 1610 | 2,634.1 | 7.15 days | water ice and silicate rock | Juno, JUICE |
| Callisto | Galileo Galilei, 1610 | 2,410.3 | 16.69 days | heavily cratered ice | Galileo, JUICE |
| Io | Galileo Galilei, 1610 | 1,821.6 | 1.77 days | sulfur and sulfur dioxide frost | Voyager 1, Juno |

All four were seen within a week."""

CODE = """Use a generator, so that only one line is in memory:

```python
def longest(path: str) -> str:
    with open(path, encoding="utf-8") as lines:
        return max(lines, key=len)  # a comment that is so long that the line is wider than a card on a telephone
```

Call `longest("words.txt")`. The result keeps its newline:

1. read a line,
2. compare it with the longest.

> An empty file raises `ValueError`."""

LATEX = r"""The roots of $a x^2 + b x + c = 0$ are

$$
x_{1,2} = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
\\
+ x_1 * x_2 = \frac{c}{a}
$$

and \(\Delta = b^2 - 4 a c\) decides. So \[ \sum_{i=1}^{n} i = \frac{n(n+1)}{2}. \] It costs $5 and *not* $6."""


def card(*events: Event, every: float = 0.4) -> Card:
    """Return the card after `events`, the first of which arrives after 0.6 seconds."""
    folded = Card(0.0)
    for number, event in enumerate(events):
        folded = folded.add(event, 0.6 + every * number)
    return folded


def running(*events: Event, now: float = 4.2, every: float = 0.4) -> str:
    return cards_html({None: card(*events, every=every)}, now)


def done(*events: Event, now: float = 4.2) -> str:
    return cards_html({None: card(MODEL, *events, *ENDED).finish("done", now)}, now)


def call(id: str, name: str, arguments: dict[str, Any]) -> tuple[Event, ...]:
    return ToolCallStarted(id, name), ToolCallCompleted(id, name, arguments, json.dumps(arguments))


def tool(id: str, name: str, arguments: dict[str, Any], *more: Event) -> tuple[Event, ...]:
    return (*call(id, name, arguments), ToolExecutionStarted(id, name, arguments), *more)


WEATHER = {"city": "Lima", "days": 2}
FORECAST = '{"city":"Lima","days":[{"day":"Monday","sky":"clear","high":18},{"day":"Tuesday","sky":"mist","high":17}]}'
CALLED = tool("c1", "weather", WEATHER)
ANSWERED = (*CALLED, ToolExecutionCompleted("c1", "weather", FORECAST), ToolResultEncoded("c1", FORECAST))
LONG = {"sql": "SELECT city, sum(amount) FROM sales GROUP BY city ORDER BY 2 DESC", "limit": 10, "database": "2026"}
NO_STATION = ToolError("handler_raised", "there is no station in Oslo; ask for Bergen", tool_name="weather")


def three() -> str:
    texts = {
        "gpt-5-mini": "Blue light scatters **most**, so the sky is blue from every side.",
        "claude-haiku-4-5": "Air scatters short waves more than long ones. That is *Rayleigh scattering*.",
    }
    cards = {
        name: card(MODEL, TextCompleted(text), *ENDED).finish("done", 2.0 + n)
        for n, (name, text) in enumerate(texts.items())
    }
    return cards_html({**cards, "gemini-2.5-flash": card(MODEL, TextDelta("The sky is "))}, 4.2)


def agent() -> str:
    inside = (MODEL, ThinkingDelta("Which roses?"), TextDelta("Let me look. "), *tool("s1", "search", {"q": "roses"}))
    return running(*tool("c1", "research", {"prompt": "roses"}), *(Nested(("c1",), event) for event in inside), now=9.0)


DISPLAYS: dict[str, Callable[[], str]] = {
    "card-waiting": lambda: running(now=1.5),
    "card-thinking": lambda: running(MODEL, ThinkingDelta("They ask for primes. \n\nTwo is *even*, and a prime.")),
    "card-streaming": lambda: running(MODEL, TextDelta("The first three primes are **2**, **3** and ")),
    "card-silent": lambda: running(MODEL, TextDelta("One moment"), now=95.0),
    "card-arguments": lambda: running(MODEL, ToolCallStarted("c1", "weather"), ToolCallDelta("c1", '{"city": "Li')),
    "card-tool-running": lambda: running(MODEL, *CALLED, ToolProgress("c1", "weather", "asking the station in Lima")),
    "card-tool-done": lambda: done(TextCompleted("Let me look."), *ANSWERED, TextCompleted("It is 18 °C.", "b")),
    "card-tool-failed": lambda: done(*tool("c1", "weather", {"city": "Oslo"}), *failed(), TextCompleted("No idea.")),
    "card-tool-long": lambda: running(MODEL, *tool("c1", "query", LONG)),
    "card-agent": agent,
    "card-approval": lambda: running(
        MODEL, *call("c1", "pay", {"to": "Ann", "amount": 5}), ToolApprovalRequested("c1", "pay", {"to": "Ann"})
    ),
    "card-question": lambda: running(MODEL, *tool("c1", "ask", {}), AskUserRequested("c1", "ask", "Which **city**?")),
    "card-error": lambda: cards_html({None: Card(0.0).finish("failed", 1.2, BUSY)}, 1.2),
    "card-cut": lambda: cards_html(
        {None: card(MODEL, TextDelta("The first three primes are "), ErrorEvent(BUSY)).finish("done", 1.8)}, 1.8
    ),
    "card-stopped": lambda: cards_html({None: card(MODEL, TextDelta("Once upon a")).finish("stopped", 1.8)}, 1.8),
    "card-whole": lambda: done(
        ThinkingCompleted("Two is even."),
        TextCompleted("See **here**."),
        SourceAdded({"url": "https://example.org/primes", "title": "Primes, an introduction"}),
    ),
    "card-table": lambda: done(TextCompleted(TABLE)),
    "card-code": lambda: done(TextCompleted(CODE)),
    "card-latex": lambda: done(TextCompleted(LATEX)),
    "timeline": lambda: run.drawn().html(),
    "marbles": lambda: "<br>".join(pictures.SCENARIOS[name]().svg() for name in ("race", "restart", "run_tools")),
    "card-three": three,
    "value-thread": lambda: value_html(Thread((user("Why is the sky *blue*?"), assistant("It **scatters**.")))) or "",
    "value-usage": lambda: value_html(Usage(412, 96, cached_input_tokens=128, total_cost=0.00123)) or "",
}


def failed() -> tuple[Event, ...]:
    content = '{"error": "ToolError: there is no station in Oslo; ask for Bergen"}'
    return ToolExecutionCompleted("c1", "weather", None, NO_STATION), ToolResultEncoded("c1", content)


def page(page: str, displays: Iterable[str]) -> str:
    """Return a page with these displays. It has a style of its own, as the page of a notebook or a blog has."""
    background, text = PAGES[page]
    style = f"body{{margin:16px;background:{background};color:{text};font:15px/1.5 system-ui,sans-serif}}"
    style += "h2{font-size:11px;font-weight:400;opacity:.5;margin:20px 0 6px}"
    parts = (f"<h2>{name}</h2><div>{DISPLAYS[name]()}</div>" for name in displays)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{page}</title><style>{style}</style>{''.join(parts)}"
    )


def write(folder: Path, names: Iterable[str]) -> None:
    """Write a sheet of all displays, and one picture of each, for each page and width."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise FileNotFoundError("chromium is not installed: apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    with import_module("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        for scheme, system in (("light", "dark"), ("dark", "light")):
            for width in WIDTHS:
                tab = browser.new_page(viewport={"width": width, "height": 600}, color_scheme=system)
                for name, shown in [("all", list(names)), *((name, [name]) for name in names)]:
                    tab.set_content(page(scheme, shown))
                    tab.screenshot(path=folder / f"{name}-{scheme}-{width}.png", full_page=True)
                tab.close()
        browser.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2:] or list(DISPLAYS))
