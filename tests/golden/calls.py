"""What whole calls send, over a mocked transport: the settings of engine and call, the steps of a chat, counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import httpx
from reactivex import from_iterable

import rxllm
from rxllm import Anthropic, Engine, Gemini, LLMError, Ollama, OpenAIChat, OpenAIResponses, system, user, web
from tests.benchmarks import wires
from tests.golden import kept
from tests.golden.requests import ADD, KEYS, SCHEMA, City, row_of, weather

ADAPTERS: dict[str, Any] = {
    "anthropic": Anthropic,
    "gemini": Gemini,
    "ollama": Ollama,
    "openai_chat": OpenAIChat,
    "openai_responses": OpenAIResponses,
}
PARAMS = {"temperature": 0.5, "seed": 7, "options": {"user": "u1"}, "headers": {"X-Team": "blue"}}
CALL: dict[str, Any] = {
    "top_p": 0.25,
    "max_tokens": 99,
    "stop": ["END"],
    "tools": [weather, ADD],
    "tool_choice": "weather",
    "reasoning_effort": "low",
    "headers": {"X-Call": "1"},
    "request_id": "r1",
    "retry": False,
}


@rxllm.tool
async def note(text: str) -> str:
    """Note a text."""
    return "noted"


def sent(adapter: Any, ask: Callable[[Engine], Any], *kinds: str) -> list[dict[str, Any]]:
    """Return the requests of a call, which is answered on the chat wire with a tool call or text, and then refused."""
    rows: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        rows.append(row_of(request))
        if len(rows) > len(kinds):
            return httpx.Response(400)
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, content=b"".join(wires.answer("chat", kinds[len(rows) - 1], 3)), headers=headers)

    def client() -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(answer))

    with suppress(LLMError):
        ask(Engine(adapter(client=client, **KEYS), model="m", params=PARAMS)).run()
    return rows


def plain(engine: Engine) -> Any:
    return rxllm.generate(engine, [system("Be brief."), user("Hi")], **CALL)


def schema(engine: Engine) -> Any:
    return rxllm.generate(engine, "Hi", response_format=City, retry=False)


def chat(engine: Engine) -> Any:
    return rxllm.chat(engine, "Hi", tools=[note])


def finalized(engine: Engine) -> Any:
    return rxllm.chat(engine, "Hi", tools=[note], structured_finalize=True, response_format=SCHEMA, retry=False)


def counted(engine: Engine) -> Any:
    return rxllm.count_tokens(engine, "Hi", tools=[weather])


def calls() -> str:
    """Return the requests of calls, one a line."""
    kinds = {
        **{f"plain, {name}": sent(adapter, plain) for name, adapter in ADAPTERS.items()},
        **{f"schema, {name}": sent(adapter, schema) for name, adapter in ADAPTERS.items()},
        "chat": sent(OpenAIChat, chat, "tool", "text"),
        "finalized": sent(OpenAIChat, finalized, "tool", "text"),
        **{f"counted, {name}": sent(adapter, counted) for name, adapter in ADAPTERS.items()},
    }
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, rows in kinds.items() for row in rows]
    return "\n".join(lines) + "\n"


OPTIONS: dict[str, dict[str, Any]] = {"rxllm": {}, "ui": {}, "ag-ui": {"thread_id": "t", "run_id": "r"}}


def frames(protocol: str) -> str:
    """Return a chat with a tool, an agent and an approval as server-sent events for a browser."""
    events = list(kept.FACTORIES["chat"]("Go!"))
    return "".join(
        web.sse(frame).decode() for frame in from_iterable(events).pipe(web.encode(protocol, **OPTIONS[protocol]))
    )


WRITERS: dict[str, Callable[[], str]] = {
    "sent/calls.txt": calls,
    **{f"web/{protocol}.sse": partial(frames, protocol) for protocol in OPTIONS},
}
