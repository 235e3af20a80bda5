"""What the tests share: a chat that makes one call, and servers that follow a script, over HTTP and as programs."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import rxllm
from rxllm import ChatResult, Fake, Tool, ToolCall, mcp
from rxllm.testing.loopback import Loopback, Pause, Reply, Request
from tests.waiting import PATIENCE

TOOL = {"name": "f", "description": "F.", "inputSchema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
FOUND = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
Answer = Callable[[dict[str, Any]], Any]


def calling(tools: Iterable[Tool], name: str, /, **arguments: Any) -> rxllm.Stream[ChatResult]:
    """A chat that calls the tool `name` once."""
    fake = Fake(ToolCall("c1", name, arguments), "Done.")
    return rxllm.chat(fake, "Do it.", tools=list(tools), tool_timeout=PATIENCE)


def outcome(result: ChatResult) -> str:
    """What the model reads of the last tool call."""
    return [message.text for message in result.thread if message.role == "tool"][-1]


def reply_to(message: dict[str, Any], result: Any) -> Reply:
    return Reply.of_json({"jsonrpc": "2.0", "id": message["id"], "result": result})


def event(data: Any) -> bytes:
    return f"event: message\ndata: {json.dumps(data)}\n\n".encode()


def scripted(**answers: Answer | Reply | dict[str, Any]) -> Loopback:
    """A server that follows `script`."""
    return Loopback(script(**answers))


def script(**answers: Answer | Reply | dict[str, Any]) -> Callable[[Request], Reply]:
    """The script of a server of the modern era.

    An answer is a result, a `Reply`, or a function of the message that returns one.
    """
    known: dict[str, Any] = {"discover": FOUND, "list": {"tools": [TOOL]}, **answers}

    def answer_to(request: Request) -> Reply:
        message = request.json
        answer = known[message["method"].rpartition("/")[2]]
        answer = answer(message) if callable(answer) else answer
        return answer if isinstance(answer, Reply) else reply_to(message, answer)

    return answer_to


def endless(chunk: bytes, pause: float = 0.0) -> Iterable[bytes | Pause]:
    while True:
        yield chunk
        if pause:
            yield Pause(pause)


PLAIN = """
import json, os, signal, subprocess, sys, time
def send(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("f", "g")]
RESULTS = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {}},
    "tools/list": {"tools": TOOLS},
    "tools/call": {"content": [{"type": "text", "text": str(os.getpid())}]},
}
def serve(on_call=lambda message: None):
    for line in sys.stdin:
        message = json.loads(line)
        if message["method"] == "tools/call" and on_call(message):
            continue
        if message["method"] in RESULTS:
            send(id=message["id"], result=RESULTS[message["method"]])
        elif "id" in message:
            send(id=message["id"], error={"code": -32601, "message": "no"})
"""
"""A server of the handshake's era, without any package: quick to start."""


def program(body: str, **options: Any) -> mcp.Stdio:
    return mcp.Stdio(sys.executable, "-c", PLAIN + textwrap.dedent(body), **options)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
