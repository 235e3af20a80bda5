"""The reference server of the protocol's authors, @modelcontextprotocol/server-everything, over HTTP and stdio."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

import rxllm
from rxllm import Fake, ToolCall, ToolProgress, mcp, serializer
from rxllm.values import ImagePart
from tests.judges import absent, node
from tests.mcp.chats import calling, outcome
from tests.runtime.support import ROOT

pytestmark = [pytest.mark.sockets, pytest.mark.judges]

PACKAGE = ROOT / "tests" / "node_modules" / "@modelcontextprotocol" / "server-everything"


@pytest.fixture(params=["stdio", "streamableHttp"], scope="module")
def everything(request: pytest.FixtureRequest) -> Iterator[mcp.HTTP | mcp.Stdio]:
    if not PACKAGE.is_dir():
        absent("@modelcontextprotocol/server-everything", "npm ci --prefix tests")
    command = [node(), str(PACKAGE / "dist" / "index.js"), request.param]
    if request.param == "stdio":
        with mcp.Stdio(*command) as connection:
            yield connection
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "PORT": str(port)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        with contextlib.ExitStack() as stack:
            stack.callback(process.kill)
            assert any(b"listening" in line for line in process.stderr)
            yield stack.enter_context(mcp.HTTP(f"http://127.0.0.1:{port}/mcp"))


@pytest.fixture(scope="module")
def tools(everything: mcp.HTTP | mcp.Stdio) -> tuple[rxllm.Tool, ...]:
    return mcp.tools(everything).run()


@pytest.mark.judges
def test_its_tools_are_listed_and_called(tools: tuple[rxllm.Tool, ...]) -> None:
    assert len(tools) > 10
    assert outcome(calling(tools, "echo", message="hi").run()) == "Echo: hi"
    assert outcome(calling(tools, "get-sum", a=1, b=2).run()) == "The sum of 1 and 2 is 3."
    text = outcome(calling(tools, "get-structured-content", location="New York").run())
    assert text == '{"temperature":33,"conditions":"Cloudy","humidity":82}'


def progress(tools: tuple[rxllm.Tool, ...], name: str, **arguments: Any) -> list[Any]:
    events = rxllm.stream(Fake(ToolCall("c1", name, arguments), "Done."), "Go.", tools=tools)
    return [event.data for event in events if isinstance(event, ToolProgress)]


def test_its_progress_and_its_picture_are_events(tools: tuple[rxllm.Tool, ...]) -> None:
    steps = progress(tools, "trigger-long-running-operation", duration=0.3, steps=3)
    assert [step["progress"] for step in steps] == [1, 2, 3]
    (picture,) = progress(tools, "get-tiny-image")
    assert isinstance(picture, ImagePart)
    assert picture.image.mime_type == "image/png"


def test_its_question_halts_and_is_answered(tools: tuple[rxllm.Tool, ...]) -> None:
    halted = calling(tools, "trigger-elicitation-request").run()
    assert halted.pending_question == "Please provide inputs for the following fields:"
    assert "name" in halted.metadata["ask_user_opts"]["schema"]["properties"]
    halted = serializer.from_json(serializer.to_json(halted))
    answers = {halted.pending_tool_call_id or "": '{"name": "Ada"}'}
    result = rxllm.resume(Fake("Done."), halted, results=answers, tools=tools).run()
    assert "Name: Ada" in outcome(result)
