"""Small inputs that would fill the memory. ``python -m tests.bombs NAME`` meets one of them with 300 MB of memory."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import httpx

import rxllm
from rxllm import Engine, LLMError, TextDelta, generate, mcp, stream_generate, web
from rxllm.adapters import OpenAIChat, OpenAIImages, OpenAIResponses
from rxllm.testing.loopback import STALL, Loopback, Reply, Request, chat, endless
from rxllm.values import Call, Image
from tests.adapters.openai_responses.support import CREATED, HI
from tests.waiting import until

MIB = 1 << 20
LIMIT = 300 * MIB


@cache
def gzip_bomb(size: int = 500 * MIB) -> bytes:
    """Return `size` zeros, a thousand times smaller."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([*(packer.compress(bytes(MIB)) for _ in range(size // MIB)), packer.flush()])


def reply(kind: str = "text/event-stream", status: int = 200) -> Reply:
    return Reply(gzip_bomb(), status, {"Content-Type": kind, "Content-Encoding": "gzip"})


def chat_model(server: Loopback) -> Engine:
    return Engine(OpenAIChat(base_url=server.url, api_key="k"), model="m", retry=False)


def an_answer() -> Any:
    with Loopback(reply()) as server:
        return generate(chat_model(server), "Hi").run().error


def an_error() -> Any:
    with Loopback(reply("application/json", 500)) as server:
        return generate(chat_model(server), "Hi").run().error


def a_redirect() -> Any:
    def answer(request: Request) -> Reply:
        is_new = request.path.startswith("/new")
        return Reply(chat("Hi")) if is_new else Reply(endless(lambda i: bytes(MIB)), 307, {"Location": "/new"})

    async def main() -> str:
        async with httpx.AsyncClient(follow_redirects=True) as client:
            adapter = OpenAIChat(base_url=server.url, api_key="k", client=client)
            return (await generate(Engine(adapter, model="m", retry=False), "Hi")).output_text

    with Loopback(answer) as server:
        return asyncio.run(main())


def a_stopped_answer() -> Any:
    frames = [
        part.replace(b"data: {", b'data: {"sequence_number":%d,' % index) + b"\n\n"
        for index, part in enumerate((CREATED + HI).strip().split(b"\n\n"))
    ]

    stopped = reply()

    async def main() -> list[str]:
        model = OpenAIResponses(base_url=server.url, api_key="k")
        async for event in stream_generate(model, "Hi", model="m", options={"background": True}):
            if isinstance(event, TextDelta):
                break
        await until(lambda: len(server.requests) == 2)
        await rxllm.aclose(model)
        return [request.path for request in server.requests]

    with Loopback(lambda request: stopped if "cancel" in request.path else Reply([b"".join(frames), STALL])) as server:
        return asyncio.run(main())


def an_image() -> Any:
    with Loopback(reply("application/json")) as server:
        adapter = OpenAIImages(base_url=server.url, api_key="k")
        return rxllm.generate_image(adapter, "A cat", model="m", retry=False).run()


def an_image_of_a_url() -> Any:
    with Loopback(reply("image/png")) as server:
        adapter = OpenAIImages(base_url=server.url, api_key="k")
        image = Image.from_url(f"{server.url}/a.png")
        return rxllm.edit_image(adapter, [image], "A cat", model="m", retry=False).run()


def a_token_count() -> Any:
    with Loopback(reply("application/json")) as server:
        model = OpenAIResponses(base_url=server.url, api_key="k")
        return model.count_tokens(rxllm.request("Hi", model="m"), Call()).run()


def an_mcp_server() -> Any:
    with Loopback(reply("application/json")) as server:
        return mcp.tools(mcp.HTTP(server.url)).run()


def names_of_counters() -> Any:
    counters = {"x" * 128_000: {str(number): number for number in range(10_000)}, "input_tokens": 3}
    frame = b"data: %b\n\n" % json.dumps({"choices": [], "usage": counters}).encode()
    *frames, last = chat("Hello")
    with Loopback(Reply([*frames, frame, last])) as server:
        return generate(chat_model(server), "Hi").run().usage


def data_urls() -> Any:
    outcomes: list[str] = []
    urls = [
        "data:" + ";" * 7_900_000,
        "data:" + ";a=b" * 1_900_000 + ",x",
        "data:image/png;base64," + "%" * 7_900_000,
        "data:text/plain," + "%41" * 2_600_000,
        "data:" + "," * 7_900_000,
    ]
    for url in urls:
        part = {"type": "file", "mediaType": "image/png", "url": url}
        source = {"type": "data", "value": url[5:], "mimeType": url[5:3_000_000]}
        for read in (
            lambda part=part: web.from_ui({"id": "c", "messages": [{"id": "m", "role": "user", "parts": [part]}]}),
            lambda source=source: web.from_ag_ui(
                {
                    "threadId": "t",
                    "runId": "r",
                    "messages": [{"id": "m", "role": "user", "content": [{"type": "image", "source": source}]}],
                }
            ),
            lambda url=url: rxllm.Thread.from_openai(
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
            ),
        ):
            try:
                read()
            except LLMError as error:
                outcomes.append(error.reason)
            else:
                outcomes.append("read")
    return outcomes


BOMBS: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        an_answer,
        an_error,
        a_redirect,
        a_stopped_answer,
        an_image,
        an_image_of_a_url,
        a_token_count,
        an_mcp_server,
        names_of_counters,
        data_urls,
    )
}


def main(name: str) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    try:
        outcome = BOMBS[name]()
    except LLMError as error:
        outcome = error
    print(json.dumps([type(outcome).__name__, str(outcome)[:300]]))


if __name__ == "__main__":
    main(sys.argv[1])
