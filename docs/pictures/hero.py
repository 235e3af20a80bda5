"""The first picture of the README: a race of three models, drawn from a run over real sockets.

Three servers on loopback speak the wires of OpenAI, Anthropic and Gemini. The first token wins; the picture shows when
the servers of the others saw their connections close.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from html import escape

import rxllm
from rxllm import operators as ops
from rxllm.events import TextDelta
from rxllm.testing.loopback import STALL, Loopback, Pause, Reply, chat_chunk

QUESTION = "Why is the sky blue?"
WORDS = ["Because ", "air ", "scatters ", "blue ", "light ", "most."]
BETWEEN = 0.16
"""Seconds between two words of the winner."""

WIDTH, LEFT, RIGHT, ROW, TOP = 860, 130, 24, 50, 84
PLAYED, SHOWN = 5.0, 4.0
"""Seconds in which the picture plays, and in which it then stands still."""


@dataclass
class Run:
    """What happened, in seconds since the subscription."""

    winner: str = ""
    tokens: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    closed: dict[str, float] = field(default_factory=dict[str, float])
    result: str = ""
    end: float = 0.0

    def facts(self) -> str:
        """Return what each run must show again, without its times."""
        first = self.tokens[0][0]
        assert all(first <= at < self.tokens[1][0] for at in self.closed.values()), "a loser closed late"
        text = "".join(word for _, word in self.tokens)
        return f"{self.winner} answers first: {text!r}. Closed by then: {', '.join(sorted(self.closed))}. {self.result}"


def _frame(data: Mapping[str, object]) -> bytes:
    event = f"event: {data['type']}\n" if "type" in data else ""
    return f"{event}data: {json.dumps(data)}\n\n".encode()


def _openai() -> Iterator[bytes | Pause]:
    yield Pause(0.75)
    yield chat_chunk("The ")
    yield STALL


def _anthropic() -> Iterator[bytes | Pause]:
    yield _frame({"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {}}})
    yield Pause(0.55)
    yield _frame({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    for word in WORDS:
        yield _frame({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}})
        yield Pause(BETWEEN)
    yield _frame({"type": "content_block_stop", "index": 0})
    usage = {"input_tokens": 13, "output_tokens": 9}
    yield _frame({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})
    yield _frame({"type": "message_stop"})


def _gemini() -> Iterator[bytes | Pause]:
    yield Pause(1.0)
    yield _frame({"candidates": [{"content": {"parts": [{"text": "It "}]}}]})
    yield STALL


def race() -> Run:
    """Run the race, and return what it was."""
    run = Run()
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Loopback(lambda _, body=body: Reply(body())))
            for name, body in (("openai", _openai), ("claude", _anthropic), ("gemini", _gemini))
        }
        urls = {name: server.url for name, server in servers.items()}
        models = {
            "openai": rxllm.Engine(rxllm.OpenAIChat(api_key="k", base_url=urls["openai"]), model="gpt"),
            "claude": rxllm.Engine(rxllm.Anthropic(api_key="k", base_url=urls["claude"]), model="claude"),
            "gemini": rxllm.Engine(rxllm.Gemini(api_key="k", base_url=urls["gemini"]), model="gemini"),
        }
        rxllm.generate(models["claude"], QUESTION).run()  # imports and certificates take a second, once
        began = time.monotonic()

        def note(event: TextDelta) -> None:
            run.tokens.append((time.monotonic() - began, event.delta))

        answers = [rxllm.stream_generate(model, QUESTION) for model in models.values()]
        response = rxllm.race(*answers).pipe(ops.tap(note, TextDelta), ops.to_response()).run()
        run.end = time.monotonic() - began
        run.winner = [*models][response.metadata["race"]["winner"]]
        run.result = repr(response)
        for name in models.keys() - {run.winner}:
            run.closed[name] = servers[name].connections[-1].wait_closed() - began
    return run


_STYLE = """.hero{--bg:#fff;--fg:#1f2328;--soft:#8c959f;--line:#d8dee4;--win:#0969da;--bad:#cf222e;--good:#1a7f37;
font:14px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media(prefers-color-scheme:dark){.hero{--bg:#0d1117;--fg:#e6edf3;--line:#30363d;--win:#58a6ff;--bad:#ff7b72;--good:#3fb950}}
.hero text{fill:var(--fg);white-space:pre}.hero .soft{fill:var(--soft)}.hero .small{font-size:12px}
.hero .win{fill:var(--win)}.hero .bad{fill:var(--bad)}.hero .good{fill:var(--good)}
.cover{fill:var(--bg);transform-origin:right;animation:play %(total)gs linear infinite}
.head{stroke:var(--soft);animation:move %(total)gs linear infinite}
.late{animation:late %(total)gs linear infinite}
@keyframes play{0%%{transform:scaleX(1)}%(played)g%%,100%%{transform:scaleX(0)}}
@keyframes move{0%%{transform:translateX(0)}%(played)g%%{transform:translateX(%(way)gpx);opacity:1}%(after)g%%,100%%{
transform:translateX(%(way)gpx);opacity:0}}
@keyframes late{0%%,%(played)g%%{opacity:0}%(after)g%%,100%%{opacity:1}}
@media(prefers-reduced-motion:reduce){.cover,.head{display:none}.late{animation:none}}"""


def draw(run: Run) -> str:
    """Return the run as an SVG: time passes from left to right, and the picture plays again and again."""
    way = WIDTH - LEFT
    height = TOP + 3 * ROW + 62
    scale = (way - RIGHT) / (run.end * 1.04)
    first = run.tokens[0][0]
    parts: list[str] = []

    def text(x: float, y: float, words: str, style: str = "") -> None:
        parts.append(f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>')

    def path(data: str, color: str, more: str = "") -> None:
        parts.append(f'<path d="{data}" fill="none" stroke="var(--{color})" stroke-width="2"{more}/>')

    ticks = [tenth / 5 for tenth in range(int(run.end * 5) + 1)]
    for tick in ticks:
        x = LEFT + tick * scale
        path(f"M{x:.1f} {TOP - 28}V{TOP + 3 * ROW - 18}", "line", ' style="stroke-width:1"')
    for row, name in enumerate(("openai", "claude", "gemini")):
        y = TOP + row * ROW
        if name == run.winner:
            path(f"M{LEFT} {y}H{LEFT + first * scale:.1f}", "soft", ' stroke-dasharray="2 5"')
            path(f"M{LEFT + first * scale:.1f} {y}H{LEFT + run.end * scale:.1f}", "win")
            for at, word in run.tokens:
                x = LEFT + at * scale
                parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="var(--win)"/>')
                text(x - 4, y - 14, word.strip(), "win small")
            path(f"M{LEFT + run.end * scale:.1f} {y - 9}v18", "win")
        else:
            x, late = LEFT + run.closed[name] * scale, 1000 * (run.closed[name] - first)
            path(f"M{LEFT} {y}H{x:.1f}", "soft", ' stroke-dasharray="2 5"')
            path(f"M{x - 6:.1f} {y - 6}l12 12m0-12l-12 12", "bad")
            text(x + 16, y + 5, f"socket closed {late:.1f} ms after the first token", "bad small")
    cover = f'<rect class="cover" x="{LEFT}" y="40" width="{way}" height="{3 * ROW + 36}"/>'
    head = f'<path class="head" d="M{LEFT} {TOP - 28}V{TOP + 3 * ROW - 18}" stroke-width="1.5"/>'
    parts += [cover, head]
    text(24, 32, "rxllm.race(openai, claude, gemini)")
    for row, name in enumerate(("openai", "claude", "gemini")):
        text(24, TOP + 5 + row * ROW, name, "win" if name == run.winner else "")
    for tick in ticks[::2]:
        text(LEFT + tick * scale - 10, TOP + 3 * ROW, f"{tick:g} s", "soft small")
    text(24, TOP + 3 * ROW + 38, run.result, "late")
    played = 100 * PLAYED / (PLAYED + SHOWN)
    style = _STYLE % {"total": PLAYED + SHOWN, "played": round(played, 1), "after": round(played + 2, 1), "way": way}
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="hero" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
            f' height="{height}" role="img"><title>Three models race: the first model to send a token wins,'
            f" and the other models' sockets close.</title><desc>{escape(run.facts())}</desc>",
            f"<style>{style}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" style="fill:var(--bg)"/>',
            *parts,
            "</svg>\n",
        ]
    )


def described(svg: str) -> str:
    """Return the facts that a picture was drawn from."""
    match = re.search(r"<desc>(.*?)</desc>", svg, re.DOTALL)
    return match[1] if match else ""
