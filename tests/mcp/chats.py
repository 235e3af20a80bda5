"""What the tests share: a chat that makes one call, and a server that follows a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import rxllm
from rxllm import ChatResult, Fake, Tool, ToolCall
from rxllm.testing.loopback import Loopback, Pause, Reply, Request

TOOL = {"name": "f", "description": "F.", "inputSchema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
FOUND = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
Answer = Callable[[dict[str, Any]], Any]


def calling(tools: Iterable[Tool], name: str, /, **arguments: Any) -> rxllm.Stream[ChatResult]:
    """A chat that calls the tool `name` once."""
    return rxllm.chat(Fake(ToolCall("c1", name, arguments), "Done."), "Do it.", tools=list(tools), tool_timeout=20)


def outcome(result: ChatResult) -> str:
    """What the model reads of the last tool call."""
    return [message.text for message in result.thread if message.role == "tool"][-1]


def reply_to(message: dict[str, Any], result: Any) -> Reply:
    return Reply.of_json({"jsonrpc": "2.0", "id": message["id"], "result": result})


def event(data: Any) -> bytes:
    return f"event: message\ndata: {json.dumps(data)}\n\n".encode()


def scripted(**answers: Answer | Reply | dict[str, Any]) -> Loopback:
    """A server of the modern era. An answer is a result, a `Reply`, or a function of the message that returns one."""
    known: dict[str, Any] = {"discover": FOUND, "list": {"tools": [TOOL]}, **answers}

    def script(request: Request) -> Reply:
        message = request.json
        answer = known[message["method"].rpartition("/")[2]]
        answer = answer(message) if callable(answer) else answer
        return answer if isinstance(answer, Reply) else reply_to(message, answer)

    return Loopback(script)


def endless(chunk: bytes, pause: float = 0.0) -> Iterable[bytes | Pause]:
    while True:
        yield chunk
        if pause:
            yield Pause(pause)
