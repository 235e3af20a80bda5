"""What every adapter sends for fifty requests: method, address, headers and the body's bytes. Nothing is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import httpx
import msgspec

import rxllm
from rxllm import (
    Anthropic,
    Gemini,
    LLMError,
    Local,
    Ollama,
    OpenAIChat,
    OpenAIResponses,
    Request,
    assistant,
    system,
    user,
)
from rxllm import values as va
from rxllm.adapters import connect
from rxllm.adapters.profiles import PROFILES
from rxllm.images import GeminiImages, OpenAIImages
from rxllm.web import AGUI

PNG = va.Image.from_binary(b"\x89PNG\r\n\x1a\n", "image/png")
URL = "https://example.org/a"
HI = user("Hi")
VOLATILE = {"host", "user-agent", "accept-encoding", "content-length", "connection", "traceparent"}


CHANCE = re.compile('(?<=Id":")[0-9a-f]{32}')
"""Ids of AG-UI that are made by chance."""


class City(msgspec.Struct):
    """A city."""

    name: str
    people: int | None = None


@rxllm.tool
def weather(city: str, unit: Literal["C", "F"] = "C", days: list[int] | None = None) -> str:
    """Return the weather.

    Args:
        city: The city's name.
        unit: Of the temperature.
    """
    return city + unit


ADD = rxllm.Tool("add", "Add.", {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})
CALL = va.ToolCall("call_12345", "weather", {"city": "Lima"}, '{"city": "Lima"}')
OTHER_CALL = va.ToolCall("call_67890", "add", {"x": 1})
ASKED = va.Message("assistant", "Let me look.", tool_calls=(CALL,))
ANSWERED = va.tool_result("call_12345", {"sky": "grey"})
ENCRYPTED = {"summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"}
SCHEMA = rxllm.json_schema("city", {"type": "object", "properties": {"name": {"type": "string"}}})


def said(*parts: Any) -> va.Message:
    return va.Message("assistant", parts)


def file(mime_type: str, **fields: Any) -> va.Message:
    return user(["Read this.", va.FilePart({"mime_type": mime_type, **fields})])


def thoughts(provider: str, **data: Any) -> va.Message:
    return said(va.ThinkingPart("hm", "c2ln", {"provider": provider, **data}), va.TextPart("Hello"))


CONVERSATIONS: dict[str, list[va.Message]] = {
    "text": [HI],
    "unicode": [user('é \U0001f41f "\\ \n\u2028')],
    "empty text": [user("")],
    "turns": [HI, assistant("Hello"), user("How are you?")],
    "two users": [HI, user("Ho")],
    "system": [system("Be brief."), HI],
    "two systems": [system("Be brief."), system("Be kind."), HI],
    "system in the middle": [HI, assistant("Hello"), system("Be brief."), user("Ho")],
    "system of parts": [va.Message("system", (va.TextPart("a"), va.TextPart("b"))), HI],
    "name": [va.Message("user", "Hi", "ann")],
    "parts": [va.Message("user", (va.TextPart("a"), va.TextPart("b")))],
    "data": [va.Message("user", {"k": [1, None]})],
    "image": [user(["What is it?", PNG])],
    "image by url": [user(["What is it?", va.Image.from_url(f"{URL}.png")])],
    "image in detail": [va.Message("user", (va.ImagePart(PNG, "high"),))],
    "pdf": [file("application/pdf", data=b"%PDF-", name="a.pdf")],
    "pdf by url": [file("application/pdf", url=f"{URL}.pdf")],
    "file by id": [file("application/pdf", file_id="file_1")],
    "text file": [file("text/csv", data=b"a,b\n", name="a.csv")],
    "audio": [file("audio/wav", data=b"RIFF")],
    "call": [HI, ASKED, ANSWERED],
    "two calls": [
        HI,
        va.Message("assistant", tool_calls=(CALL, OTHER_CALL)),
        ANSWERED,
        va.tool_result("call_67890", "2"),
    ],
    "result that failed": [HI, ASKED, va.Message("tool", '{"error":"no"}', None, "call_12345", (), {"error": True})],
    "result of parts": [HI, ASKED, va.Message("tool", (va.TextPart("sky"), va.ImagePart(PNG)), None, "call_12345")],
    "call in its place": [
        HI,
        va.Message("assistant", (va.TextPart("a"), va.ToolCallPart(CALL.id)), tool_calls=(CALL,)),
    ],
    "thinking": [HI, said(va.ThinkingPart("hm"), va.TextPart("Hello")), user("Ho")],
    "thinking of Anthropic": [HI, thoughts("anthropic", type="thinking"), user("Ho")],
    "thinking of Gemini": [HI, thoughts("gemini"), user("Ho")],
    "thinking of Responses": [
        HI,
        thoughts("openai", item={"type": "reasoning", "id": "rs_1", **ENCRYPTED}),
        user("Ho"),
    ],
    "thinking before a call": [HI, va.Message("assistant", (va.ThinkingPart("hm"),), tool_calls=(CALL,)), ANSWERED],
    "source": [HI, said(va.TextPart("Hello"), va.SourcePart({"type": "url_citation", "url": URL})), user("Ho")],
    "part of a provider": [HI, said(va.ProviderPart("openai", {"type": "text", "text": "own"})), user("Ho")],
}

OPTIONS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.25},
    "max_tokens": {"max_tokens": 99},
    "stop": {"stop": ("END", "STOP")},
    "seed": {"seed": 7},
    "reasoning effort": {"reasoning_effort": "low"},
    "JSON": {"response_format": {"type": "json_object"}},
    "schema": {"response_format": SCHEMA},
    "class": {"response_format": va.as_response_format(City)},
    "tools": {"tools": (weather, ADD)},
    "manual tool": {"tools": (va.Tool("ask", "Ask.", manual=True),)},
    "tool choice": {"tools": (weather,), "tool_choice": "required"},
    "no tool": {"tools": (weather,), "tool_choice": "none"},
    "tool by name": {"tools": (weather, ADD), "tool_choice": "add"},
    "tools and schema": {"tools": (weather,), "response_format": SCHEMA},
    "options": {"options": {"user": "u1", "nested": {"a": 1}, "temperature": None}, "temperature": 1.0},
    "metadata": {"metadata": {"user_id": "u1"}},
    "everything": {
        "tools": (weather, ADD),
        "tool_choice": "auto",
        "temperature": 0.5,
        "top_p": 0.25,
        "max_tokens": 99,
        "stop": ("END",),
        "seed": 7,
        "response_format": SCHEMA,
    },
}

REQUESTS = {name: Request(tuple(messages), model="m") for name, messages in CONVERSATIONS.items()}
REQUESTS |= {name: Request((HI,), model="m", **options) for name, options in OPTIONS.items()}

IMAGE_REQUESTS: dict[str, va.ImageRequest] = {
    "prompt": va.ImageRequest(prompt="a cat", model="m"),
    "options": va.ImageRequest(
        *("generate", "m", "a cat", 2, (64, 32), "high", "vivid", "transparent", "base64"), options={"user": "u1"}
    ),
    "by url": va.ImageRequest(prompt="a cat", model="dall-e-3", size="1024x1024", response_format="url"),
    "gpt-image": va.ImageRequest(prompt="a cat", model="gpt-image-1", quality="low", background="opaque"),
    "edit": va.ImageRequest("edit", "m", "a hat", input_images=(PNG, PNG), mask=PNG),
    "variation": va.ImageRequest("variation", "dall-e-2", n=2, input_images=(PNG,)),
}

KEYS: dict[str, Any] = {"api_key": "k"}
ADAPTERS: dict[str, Callable[[], Any]] = {
    "openai_chat": lambda: OpenAIChat(**KEYS),
    "openai_responses": lambda: OpenAIResponses(**KEYS),
    "anthropic": lambda: Anthropic(**KEYS),
    "gemini": lambda: Gemini(**KEYS),
    "ollama": Ollama,
    "local": lambda: Local("model.gguf"),
    "ag_ui": lambda: AGUI("http://example.org/agent"),
}
IMAGE_ADAPTERS: dict[str, Callable[[], Any]] = {
    "openai_images": lambda: OpenAIImages(**KEYS),
    "gemini_images": lambda: GeminiImages(**KEYS),
}
FOR_PROFILES = ("system", "thinking before a call", "everything")


def sent(adapter: Any, request: Any) -> dict[str, Any]:
    """Return the HTTP request as data, or the error with which the adapter refuses it."""
    try:
        built: httpx.Request = adapter.build(request, va.Call(request_id="r1", timeout=5.0, headers={"X-Team": "blue"}))
    except LLMError as error:
        paths = [".".join(map(str, path)) for path, _ in getattr(error, "errors", ())]
        return {"refused": f"{type(error).__name__}({error.reason!r})", "at": paths}
    return row_of(built)


def row_of(built: httpx.Request) -> dict[str, Any]:
    """Return an HTTP request as data, without what differs from time to time."""
    headers = {name: text for name, text in sorted(built.headers.items()) if name not in VOLATILE}
    body = built.read().decode("utf-8", "backslashreplace")
    row = {"method": built.method, "url": str(built.url), "headers": headers, "body": CHANCE.sub("ID", body)}
    if boundary := re.search("boundary=(.+)", headers.get("content-type", "")):
        return {name: json.loads(json.dumps(value).replace(boundary[1], "BOUNDARY")) for name, value in row.items()}
    return row


def table(adapter: Any, requests: dict[str, Any]) -> str:
    """Return what the adapter sends, one request a line."""
    rows = {name: sent(adapter, request) for name, request in requests.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def profiles() -> str:
    """Return what the adapters of providers that are compatible with OpenAI send, of a few requests."""
    chosen = {name: REQUESTS[name] for name in FOR_PROFILES}
    tables = {provider: table(connect(provider, **KEYS), chosen) for provider in sorted(PROFILES)}
    return "{\n" + ",\n".join(f"{json.dumps(provider)}: {rows.strip()}" for provider, rows in tables.items()) + "\n}\n"


def _tables(adapters: dict[str, Callable[[], Any]], requests: dict[str, Any]) -> dict[str, Callable[[], str]]:
    return {f"sent/{name}.json": partial(lambda make: table(make(), requests), make) for name, make in adapters.items()}


WRITERS: dict[str, Callable[[], str]] = {
    **_tables(ADAPTERS, REQUESTS),
    **_tables(IMAGE_ADAPTERS, IMAGE_REQUESTS),
    "sent/profiles.json": profiles,
}
