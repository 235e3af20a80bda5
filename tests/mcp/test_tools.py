"""The tools of real servers in chats: over HTTP in both eras, and over stdio."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import (
    Engine,
    EngineError,
    Fake,
    ToolCall,
    ToolExecutionCompleted,
    ToolProgress,
    ValidationError,
    mcp,
)
from rxllm.testing import PNG
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import ImagePart
from tests.mcp.chats import FOUND, TOOL, calling, outcome, reply_to, scripted
from tests.mcp.served import Seen
from tests.waiting import PATIENCE

pytestmark = pytest.mark.sockets


def test_the_tools_of_a_server_are_plain_tools(server: tuple[str, Seen]) -> None:
    tools = mcp.tools(server[0]).run()
    add = {tool.name: tool for tool in tools}["add"]
    assert (add.description, add.schema["required"]) == ("Add two numbers.", ["a", "b"])
    assert add.metadata["mcp"]["name"] == "add"
    result = calling(tools, "add", a=1, b=2).run()
    assert (outcome(result), result.output_text) == ("3", "Done.")


def test_a_stream_of_tools_can_be_awaited(server: tuple[str, Seen]) -> None:
    async def main() -> str:
        tools = await mcp.tools(server[0])
        return outcome(await calling(tools, "add", a=1, b=2))

    assert asyncio.run(main()) == "3"


@pytest.mark.judges
def test_a_program_serves_its_tools_over_stdio(stdio: mcp.Stdio) -> None:
    tools = mcp.tools(stdio).run()
    assert outcome(calling(tools, "add", a=1, b=2).run()) == "3"
    assert outcome(calling(tools, "fail").run()) == '{"error":"Error executing tool fail: no such city"}'


@pytest.mark.judges
def test_progress_comes_as_events_of_the_chat(server: tuple[str, Seen], stdio: mcp.Stdio) -> None:
    for source in (server[0], stdio):
        model = Fake(ToolCall("c1", "count", {"to": 3}), "Done.")
        events = list(rxllm.stream(model, "Count.", tools=mcp.tools(source).run()))
        progress = [event.data for event in events if isinstance(event, ToolProgress)]
        assert [data["progress"] for data in progress] == [1, 2, 3]
        assert progress[0] == {"progress": 1, "total": 3, "message": "at 1"}


def test_the_model_reads_structured_content_only_where_no_text_repeats_it() -> None:
    text, structured = [{"type": "text", "text": "9 coins"}], {"result": "9 coins"}
    with scripted(call={"content": text, "structuredContent": structured}) as server:
        assert outcome(calling(mcp.tools(server.url).run(), "f").run()) == "9 coins"
    with scripted(call={"content": [], "structuredContent": structured}) as server:
        assert outcome(calling(mcp.tools(server.url).run(), "f").run()) == '{"result":"9 coins"}'


def test_a_failure_is_an_error_that_the_model_reads(server: tuple[str, Seen]) -> None:
    assert "no such city" in outcome(calling(mcp.tools(server[0]).run(), "fail").run())


def test_arguments_that_do_not_fit_are_not_sent(server: tuple[str, Seen]) -> None:
    result = calling(mcp.tools(server[0]).run(), "add", a="one", b=2).run()
    assert "the arguments are invalid" in outcome(result)


def test_pictures_and_files_are_progress_and_the_model_reads_that_they_are_there(server: tuple[str, Seen]) -> None:
    tools = mcp.tools(server[0]).run()
    model = Fake(ToolCall("c1", "picture", {}), ToolCall("c2", "blocks", {}), "Done.")
    events = list(rxllm.stream(model, "Draw.", tools=tools))
    picture, sound = [event.data for event in events if isinstance(event, ToolProgress)]
    assert isinstance(picture, ImagePart)
    assert picture.image.to_binary() == PNG.to_binary()
    assert sound.file == {"mime_type": "audio/wav", "data": b"RIFF"}
    results = [event.result for event in events if isinstance(event, ToolExecutionCompleted)]
    assert results == [
        "A dot:\n[image/png, 70 bytes]",
        "[audio/wav, 4 bytes]\nfile:///a.txt:\nhello\nfile:///b.txt: b",
    ]


@pytest.mark.judges
def test_tools_work_on_any_loop_and_thread(server: tuple[str, Seen], stdio: mcp.Stdio) -> None:
    for source in (server[0], stdio):
        tools = asyncio.run(_awaited(mcp.tools(source)))
        answers: list[str] = []

        def call(tools: Any = tools, answers: list[str] = answers) -> None:
            answers.append(outcome(asyncio.run(_awaited(calling(tools, "add", a=2, b=2)))))
            answers.append(outcome(calling(tools, "add", a=2, b=2).run()))

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert answers == ["4"] * 8


async def _awaited(stream: rxllm.Stream[Any]) -> Any:
    return await stream


def test_an_approval_works_as_for_other_tools(modern: tuple[str, Seen]) -> None:
    tools = [replace(tool, approval=tool.name == "add") for tool in mcp.tools(modern[0]).run()]
    halted = calling(tools, "add", a=1, b=2).run()
    assert halted.halted_reason == "approval"
    result = rxllm.resume(Fake("Done."), halted, approvals={"c1": {"a": 5, "b": 5}}, tools=tools).run()
    assert outcome(result) == "10"


# Names, descriptions and schemas


@pytest.mark.judges
def test_a_clash_of_two_servers_names_both_and_the_remedy(modern: tuple[str, Seen], stdio: mcp.Stdio) -> None:
    tools = [tool for server in (modern[0], stdio) for tool in mcp.tools(server).run()]
    with pytest.raises(ValidationError) as raised:
        rxllm.chat(Fake("x"), "Hi", tools=tools)
    first, second = f"mcp.tools(HTTP({modern[0]!r}), prefix=...)", f"mcp.tools({stdio!r}, prefix=...)"
    assert f"{first} and {second} are both named 'add'" in str(raised.value)


def test_the_repr_of_a_program_has_its_file_and_no_other_argument(tmp_path: Path) -> None:
    (tmp_path / "shop.py").touch()
    program = mcp.Stdio("python", "-u", "shop.py", "--token", "sk-1", cwd=tmp_path)
    assert repr(program) == "Stdio('python', 'shop.py')"
    assert repr(mcp.Stdio("shop", "--token", "sk-1")) == "Stdio('shop')"


def named(*names: str, prefix: str = "") -> list[str]:
    with scripted(list={"tools": [{**TOOL, "name": name} for name in names]}) as server:
        return [tool.name for tool in mcp.tools(server.url, prefix=prefix).run()]


def test_names_are_as_all_providers_take_them() -> None:
    assert named("a.b/c d", "1st", "ok-1", "é", "") == ["a_b_c_d", "_1st", "ok-1", "_", "__2"]
    assert named("x" * 100) == ["x" * 64]
    assert named("find", prefix="shop_") == ["shop_find"]


def test_names_that_clash_are_numbered_and_call_their_own_tools() -> None:
    assert named("f", "f", "f") == ["f", "f_2", "f_3"]
    assert named("x" * 70, "x" * 80) == ["x" * 64, f"{'x' * 62}_2"]
    entries = [{**TOOL, "name": name} for name in ("a.b", "a_b")]

    def call(message: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": message["params"]["name"]}]}

    with scripted(list={"tools": entries}, call=call) as server:
        tools = mcp.tools(server.url).run()
        assert [outcome(calling(tools, name).run()) for name in ("a_b", "a_b_2")] == ["a.b", "a_b"]


def test_the_schema_passes_through_and_the_description_is_clipped() -> None:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "$defs": {"a": {}}}
    with scripted(list={"tools": [{"name": "f", "description": "d" * 9_999, "inputSchema": schema}]}) as server:
        (tool,) = mcp.tools(server.url).run()
    assert (tool.schema, len(tool.description)) == (schema, 4_000)


def test_pages_are_read_to_the_end() -> None:
    def page(message: dict[str, Any]) -> dict[str, Any]:
        number = int(message["params"].get("cursor", 0))
        return {"tools": [{**TOOL, "name": f"f{number}"}], **({"nextCursor": str(number + 1)} if number < 4 else {})}

    with scripted(list=page) as server:
        assert [tool.name for tool in mcp.tools(server.url).run()] == ["f0", "f1", "f2", "f3", "f4"]


# The wire


def test_a_request_has_the_headers_of_the_specification() -> None:
    tool = {
        "name": "é",
        "inputSchema": {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "Re"}}},
    }
    with scripted(list={"tools": [tool]}, call={"content": []}) as server:
        tools = mcp.tools(server.url, headers={"authorization": "Bearer k"}).run()
        calling(tools, "_", r="ü").run()
        discover, listed, called = server.requests
    for request, method in ((discover, "server/discover"), (listed, "tools/list"), (called, "tools/call")):
        assert request.method == "POST"
        assert request.headers["authorization"] == "Bearer k"
        assert request.headers["accept"] == "application/json, text/event-stream"
        assert request.headers["mcp-protocol-version"] == "2026-07-28"
        assert request.headers["mcp-method"] == method == request.json["method"]
        meta = request.json["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "rxllm"
        assert "elicitation" in meta["io.modelcontextprotocol/clientCapabilities"]
    assert called.headers["mcp-name"] == "=?base64?w6k=?="
    assert called.headers["mcp-param-re"] == "=?base64?w7w=?="
    assert called.json["params"]["_meta"]["progressToken"] == called.json["id"]


def test_a_session_of_the_handshake_is_ended_on_close() -> None:
    def script(request: Any) -> Any:
        message = request.json if request.method == "POST" else {"method": request.method}
        match message["method"]:
            case "server/discover":
                return Reply.of_json({"error": "what?"}, 400)
            case "initialize":
                result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {}}
                reply = reply_to(message, result)
                return replace(reply, headers={**reply.headers, "Mcp-Session-Id": "s1"})
            case "tools/list":
                return reply_to(message, {"tools": [TOOL]})
            case _:
                return Reply(status=202)

    async def main(url: str) -> None:
        async with mcp.HTTP(url) as connection:
            await mcp.tools(connection)

    with Loopback(script) as server:
        asyncio.run(main(server.url))
        _, first, *later = server.requests
        assert "mcp-session-id" not in first.headers
        assert {request.headers["mcp-session-id"] for request in later} == {"s1"}
        assert {request.headers["mcp-protocol-version"] for request in later} == {"2025-06-18"}
        assert [request.method for request in later] == ["POST", "POST", "DELETE"]


def test_a_forgotten_session_is_begun_anew(handshake: tuple[str, Seen]) -> None:
    with mcp.HTTP(handshake[0]) as connection:
        tools = mcp.tools(connection).run()
        assert connection.session is not None
        connection.session = "0" * 32
        assert outcome(calling(tools, "add", a=1, b=2).run()) == "3"


@pytest.mark.parametrize(
    ("server", "options"),
    [
        ("ftp://a", {}),
        ([], {}),
        (7, {}),
        ([1, 2], {}),
        (["a"], {"headers": {}}),
        ("http://a", {"prefix": 3}),
        ("http://a", {"headers": 3}),
    ],
)
def test_wrong_arguments_raise_at_the_call(server: Any, options: Any) -> None:
    for make in (mcp.tools, mcp.watch):
        with pytest.raises(ValidationError) as raised:
            make(server, **options)
        assert raised.value.reason == "invalid_option"


@pytest.mark.parametrize(
    "make",
    [
        lambda: mcp.HTTP(5),  # pyright: ignore[reportArgumentType]
        lambda: mcp.HTTP("http://a", timeout=0),
        lambda: mcp.HTTP("http://a", version="2025"),
        lambda: mcp.Stdio("a", env={"A": 1}),  # pyright: ignore[reportArgumentType]
        lambda: mcp.Stdio("a", env=["A"]),  # pyright: ignore[reportArgumentType]
        lambda: mcp.Stdio("a", 1),  # pyright: ignore[reportArgumentType]
        lambda: mcp.Stdio(""),
    ],
)
def test_wrong_arguments_of_a_connection_raise_at_the_call(make: Any) -> None:
    with pytest.raises(ValidationError) as raised:
        make()
    assert raised.value.reason == "invalid_option"


def test_a_command_in_one_string_and_a_stream_in_place_of_tools_say_what_to_write() -> None:
    with pytest.raises(ValidationError, match=r"server must be a URL .* or a command as a list"):
        mcp.tools("python shop.py")
    with scripted() as server:
        for tools in (mcp.tools(server.url), [mcp.tools(server.url)]):
            with pytest.raises(ValidationError, match=r"the Stream has not run yet; write .*\.run\(\), or await"):
                rxllm.chat(Fake("Hi."), "Hi.", tools=tools)  # pyright: ignore[reportArgumentType]
        with pytest.raises(EngineError, match=r"the Stream has not run yet; write .*\.run\(\), or await"):
            Engine(Fake("Hi."), tools=mcp.tools(server.url))  # pyright: ignore[reportArgumentType]
        assert not server.requests


def test_nothing_is_sent_before_the_subscription() -> None:
    with scripted(discover=FOUND) as server:
        tools = mcp.tools(server.url)
        assert not server.requests
        tools.run()
        assert len(server.requests) == 2
