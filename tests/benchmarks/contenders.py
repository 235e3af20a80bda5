"""Who reads a stream: rxllm, loops written by hand, and other libraries as their documents say.

Each is a function of a wire, a base URL and the kind of the deltas that gives an asynchronous function: ask once, read
all, and give what the deltas said together.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.benchmarks import wires

Ask = Callable[[], Awaitable[str]]

KEY = "sk-benchmark"
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
PATHS = {"chat": "/chat/completions", "anthropic": "/messages"}


def rxllm(wire: str, url: str, client: Any = None) -> Ask:
    import rxllm
    from rxllm import TextDelta
    from rxllm import operators as ops

    engine = rxllm.Engine(wires.adapter(wire, base_url=url, client=client), model="m")
    seen = 0

    def see(event: TextDelta) -> None:
        nonlocal seen
        seen += 1

    async def ask() -> str:
        events = rxllm.stream_generate(engine, "Hi")
        piped = events.pipe(ops.tap(see, TextDelta), ops.include_raw_chunks(), ops.filter_deltas(), ops.to_response())
        return (await piped).raise_for_error().output_text

    return ask


def by_hand(wire: str, url: str, client: Any = None, decode: Callable[[str], Any] = json.loads) -> Ask:
    """The loop that everybody writes: ``aiter_lines``, and the JSON of each line."""
    import httpx

    client = (client or httpx.AsyncClient)()
    text_of: Callable[[Any], str | None] = _TEXTS[wire]

    async def ask() -> str:
        pieces: list[str] = []
        async with client.stream("POST", url + PATHS[wire], json=BODY) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                text = text_of(decode(line[6:]))
                if text:
                    pieces.append(text)
        return "".join(pieces)

    return ask


def _chat_text(chunk: dict[str, Any]) -> str | None:
    return chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None


def _anthropic_text(event: dict[str, Any]) -> str | None:
    return event["delta"].get("text") if event["type"] == "content_block_delta" else None


_TEXTS = {"chat": _chat_text, "anthropic": _anthropic_text}


def by_hand_msgspec(wire: str, url: str) -> Ask:
    """The same loop with msgspec for the JSON."""
    import msgspec

    return by_hand(wire, url, decode=msgspec.json.Decoder().decode)


def bytes_only(wire: str, url: str) -> Ask:
    """No more than the bytes: what httpx itself takes."""
    import httpx

    client = httpx.AsyncClient()

    async def ask() -> str:
        async with client.stream("POST", url + PATHS[wire], json=BODY) as response:
            async for _ in response.aiter_raw():
                pass
        return ""

    return ask


def sdk(wire: str, url: str) -> Ask:
    """The provider's own: ``openai``, ``anthropic``."""
    return {"chat": _openai, "anthropic": _anthropic}[wire](url)


def _openai(url: str) -> Ask:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key=KEY, base_url=url)

    async def ask() -> str:
        pieces: list[str] = []
        stream = await client.chat.completions.create(model="m", messages=BODY["messages"], stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                pieces.append(chunk.choices[0].delta.content)
        return "".join(pieces)

    return ask


def _anthropic(url: str) -> Ask:
    from anthropic import AsyncAnthropic

    client = AsyncAnthropic(api_key=KEY, base_url=url)

    async def ask() -> str:
        pieces: list[str] = []
        async with client.messages.stream(model="m", max_tokens=100, messages=BODY["messages"]) as stream:
            async for text in stream.text_stream:
                pieces.append(text)
        return "".join(pieces)

    return ask


def litellm(wire: str, url: str) -> Ask:
    import litellm

    litellm.suppress_debug_info = True
    model = {"chat": "openai/m", "anthropic": "anthropic/claude-sonnet-4-5"}[wire]
    base = {"chat": url, "anthropic": url + "/v1/messages"}[wire]

    async def ask() -> str:
        pieces: list[str] = []
        stream = await litellm.acompletion(
            model=model, messages=BODY["messages"], stream=True, api_key=KEY, api_base=base
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                pieces.append(chunk.choices[0].delta.content)
        return "".join(pieces)

    return ask


def langchain(wire: str, url: str) -> Ask:
    model = {"chat": _langchain_openai, "anthropic": _langchain_anthropic}[wire](url)

    async def ask() -> str:
        pieces: list[str] = []
        async for chunk in model.astream("Hi"):
            if chunk.text:
                pieces.append(chunk.text)
        return "".join(pieces)

    return ask


def _langchain_openai(url: str) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="m", api_key=KEY, base_url=url)


def _langchain_anthropic(url: str) -> Any:
    from langchain_anthropic import ChatAnthropic

    return ChatAnthropic(model="claude-sonnet-4-5", max_tokens=100, api_key=KEY, base_url=url)


def pydantic_ai(wire: str, url: str) -> Ask:
    from pydantic_ai import Agent

    agent = Agent(_pydantic_model(wire, url))

    async def ask() -> str:
        pieces: list[str] = []
        async with agent.run_stream("Hi") as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                pieces.append(text)
        return "".join(pieces)

    return ask


def _pydantic_model(wire: str, url: str) -> Any:
    if wire == "anthropic":
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        client = AsyncAnthropic(api_key=KEY, base_url=url)
        return AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(anthropic_client=client))
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel("m", provider=OpenAIProvider(api_key=KEY, base_url=url))


# The same over other transports, through the ecosystem's own adapters


def _httpx2() -> Any:
    import httpx2

    return httpx2.AsyncClient()


def _aiohttp() -> Any:
    from httpx_aiohttp import HttpxAiohttpClient

    return HttpxAiohttpClient()


def rxllm_httpx2(wire: str, url: str) -> Ask:
    return rxllm(wire, url, _httpx2)


def rxllm_aiohttp(wire: str, url: str) -> Ask:
    from rxllm.adapters import aiohttp_client

    return rxllm(wire, url, aiohttp_client)


def by_hand_httpx2(wire: str, url: str) -> Ask:
    return by_hand(wire, url, _httpx2)


def by_hand_aiohttp(wire: str, url: str) -> Ask:
    return by_hand(wire, url, _aiohttp)
