"""An adapter of one's own: an async generator of chunks.

Prints::

    You said: Hi
    4 tokens
"""

from collections.abc import AsyncIterator
from typing import Any, assert_type

import rxllm
from rxllm import Engine, Request, Response, chunks
from rxllm.values import Call


async def echo(request: Request, call: Call) -> AsyncIterator[chunks.StreamChunk]:
    yield chunks.text("You said: ")
    yield chunks.text(request.messages[-1].text)
    yield chunks.meta({"usage": {"input_tokens": 1, "output_tokens": 3}})


response = rxllm.generate(Engine(echo), "Hi").run()
assert_type(response, Response[Any])
print(response.output_text)
print(response.usage.total, "tokens")
