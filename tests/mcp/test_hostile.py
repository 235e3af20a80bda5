"""A server cannot hang a client, fill its memory, or leave anything open: its bounds are typed errors."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import rxllm
from rxllm import AdapterError, LLMError, ValidationError, mcp
from rxllm.testing import World, simulate
from rxllm.testing.loopback import STALL, Cut, Loopback, Reply
from tests.closing import SILENT
from tests.mcp.chats import FOUND, TOOL, calling, endless, event, outcome, program, reply_to, script, scripted
from tests.waiting import PATIENCE, turns, until

pytestmark = pytest.mark.sockets

JSON = {"Content-Type": "application/json"}
DEEP = b'{"jsonrpc":"2.0","id":1,"result":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}"


def failure(server: Loopback, seconds: float = PATIENCE) -> LLMError:
    """The error of listing the tools of `server`, all of whose connections are closed then."""
    with pytest.raises(LLMError) as raised, mcp.HTTP(server.url, timeout=seconds) as connection:
        mcp.tools(connection).run()
    for connection in server.connections:
        connection.wait_closed()
    return raised.value


PROGRESS = event({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}})


@pytest.mark.judges
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        pytest.param(Reply(endless(b"data: " + b"x" * 65536)), "oversized_frame", id="a frame without end"),
        pytest.param(Reply(endless(b"{" + b" " * 65536), headers=JSON), "oversized_frame", id="JSON without end"),
        pytest.param(Reply(DEEP, headers=JSON), "truncated", id="deep JSON"),
        pytest.param(Reply(b"data: " + DEEP + b"\n\n"), "malformed_event", id="deep JSON in an event"),
        pytest.param(Reply(b"[1, 2]", headers=JSON), "malformed_event", id="no object"),
        pytest.param(Reply(b"<html>", headers={"Content-Type": "text/html"}), "malformed_response", id="a page"),
        pytest.param(Reply(b"{not JSON", headers=JSON), "truncated", id="not JSON"),
        pytest.param(Reply(b'data: {"a": \n\n'), "malformed_event", id="not JSON in an event"),
        pytest.param(Reply([b"data: {", Cut.RESET]), "truncated", id="gone in the middle"),
        pytest.param(Reply(b"", 202), "truncated", id="accepted, and nothing more"),
        pytest.param(Reply(b"nope", 401), "authentication_failed", id="a key is missing"),
        pytest.param(Reply(b"x" * 5_000_000, 500), "provider_unavailable", id="a long error"),
    ],
)
def test_a_list_of_tools_that_is_none_is_an_error(reply: Reply, reason: str) -> None:
    with scripted(list=reply) as server:
        error = failure(server)
    assert error.reason == reason
    assert len(str(error)) < 1_000


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(SILENT, id="silence"),
        pytest.param(Reply([b": ping\n\n", STALL]), id="an answer that stops"),
        pytest.param(Reply(endless(PROGRESS, 0.1)), id="no end of notices"),
        pytest.param(Reply(endless(b": ping\n\n", 0.1)), id="no end of pings"),
    ],
)
def test_a_list_of_tools_that_does_not_end_fails_in_time(reply: Reply) -> None:
    async def main(world: World) -> None:
        server = world.serve(script(list=reply))
        with pytest.raises(LLMError) as raised:
            async with mcp.HTTP(server.url, timeout=30) as connection:
                await mcp.tools(connection)
        assert raised.value.reason == "timeout"

    assert 30 <= simulate(main, faults=()).duration < 35


@pytest.mark.parametrize("reply", [SILENT, Reply(DEEP, headers=JSON), Reply(b"", 202)])
def test_a_server_without_an_era_fails_in_time(reply: Reply) -> None:
    with Loopback(reply) as server:
        assert failure(server, 1.0).reason in ("timeout", "malformed_event", "truncated")


def test_all_who_wait_for_a_server_fail_when_the_first_does() -> None:
    async def main(world: World) -> list[Any]:
        async with mcp.HTTP(world.serve(SILENT).url, timeout=30) as connection:
            return await asyncio.gather(*(_awaited(mcp.tools(connection)) for _ in range(10)), return_exceptions=True)

    run = simulate(main, faults=())
    assert [error.reason for error in run.value] == ["timeout"] * 10
    assert run.duration < 50  # the server is asked in two ways, and not in two ways by each who waits


async def _awaited(stream: rxllm.Stream[Any]) -> Any:
    return await stream


@pytest.mark.judges
def test_one_who_waits_tries_when_the_first_has_left(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main(connection: mcp.Stdio) -> int:
        first, *others = [asyncio.ensure_future(_awaited(mcp.tools(connection))) for _ in range(5)]
        await until(lambda: connection._process)
        await turns()
        first.cancel()
        gate.touch()
        return len({len(await other) for other in others})

    with program(f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\nserve()") as connection:
        assert asyncio.run(main(connection)) == 1


def test_pages_without_end_are_refused() -> None:
    cursors = itertools.count()
    with scripted(list=lambda message: {"tools": [], "nextCursor": f"{next(cursors)}"}) as server:
        error = failure(server)
        assert len(server.requests) == 101
    assert (error.reason, "100 pages" in error.message) == ("malformed_response", True)


@pytest.mark.parametrize(
    "result",
    [
        {"tools": [TOOL] * 1_001},
        {"tools": "all"},
        {"tools": [1]},
        {"tools": [{"name": 3, "inputSchema": {}}]},
        {"tools": [{"name": "f"}]},
        {"tools": [{"name": "f", "inputSchema": []}]},
        {},
    ],
)
def test_a_result_that_is_no_list_of_tools_is_refused(result: Any) -> None:
    with scripted(list=result) as server:
        assert failure(server).reason == "malformed_response"


def answered(call: Any, **options: Any) -> str:
    """What the model reads of a call that is answered by `call`."""
    with scripted(call=call) as server:
        model = rxllm.Fake(rxllm.ToolCall("c1", "f", {"x": 1}), "Done.")
        options = {"tool_timeout": PATIENCE, **options}
        result = rxllm.chat(model, "Go.", tools=mcp.tools(server.url).run(), **options).run()
        assert result.output_text == "Done."
        for connection in server.connections[1:]:
            connection.wait_closed()
    return outcome(result)


@pytest.mark.judges
def test_a_call_that_goes_wrong_is_an_error_that_the_model_reads() -> None:
    long = "x" * 20_000_000
    assert "did not finish within 1.0 s" in answered(SILENT, tool_timeout=1.0)
    assert "did not finish within 1.0 s" in answered(Reply(endless(PROGRESS, 0.001)), tool_timeout=1.0)
    assert "has more than 16777216 bytes" in answered(lambda message: {"content": [{"type": "text", "text": long}]})
    assert "closed the stream" in answered(lambda message: Reply(json.dumps(_deep(message)).encode(), headers=JSON))
    assert "closed the stream" in answered(Reply([b": hi\n\n"]))
    assert "StreamError" in answered(Reply([PROGRESS, Cut.RESET]))
    assert "has no result" in answered(lambda message: Reply.of_json({"jsonrpc": "2.0", "id": message["id"]}))
    assert "has no result" in answered(lambda message: reply_to(message, [1]))
    assert "not base64" in answered({"content": [{"type": "image", "data": "%%%", "mimeType": "image/png"}]})
    assert "asked 10 times" in answered({"resultType": "input_required", "requestState": "s"})
    assert "sent no question" in answered({"resultType": "input_required"})
    assert "sampling" in answered(
        {"resultType": "input_required", "inputRequests": {"a": {"method": "sampling/createMessage", "params": {}}}}
    )
    assert "Bad tool" in answered(
        lambda message: Reply.of_json({"id": message["id"], "error": {"code": -32602, "message": "Bad tool"}}, 400)
    )


def _deep(message: dict[str, Any]) -> Any:
    structured: Any = 1
    for _ in range(500):
        structured = {"a": structured}
    return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [], "structuredContent": structured}}


def test_answers_to_other_requests_and_unknown_notices_are_passed_over() -> None:
    def noisy(message: dict[str, Any]) -> Reply:
        others: list[Any] = [
            {"jsonrpc": "2.0", "id": 999, "result": {"content": []}},
            {"jsonrpc": "2.0", "id": f"0{message['id']}", "result": {}},
            {"jsonrpc": "2.0", "id": None, "result": {}},
            {"jsonrpc": "2.0", "method": "notifications/new", "params": [1]},
            {"jsonrpc": "2.0", "method": "notifications/progress"},
            {"jsonrpc": "2.0", "method": 3},
            {"nothing": "known"},
        ]
        own = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": "mine"}]}}
        return Reply(b"".join(map(event, [*others, own, {**own, "result": {"content": []}}])))

    assert answered(noisy) == "mine"


EXPONENTIAL = {f"x{n}": {"allOf": [{"$ref": f"#/$defs/x{n + 1}"}] * 2} for n in range(40)} | {"x40": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "read"),
    [
        ({"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}, "does not match"),
        ({"properties": {"x": {"type": "string", "pattern": r"^(?=a)(a+)+\1$"}}}, "ok"),
        ({"properties": {"x": {"$ref": "#/$defs/x0"}}, "$defs": EXPONENTIAL}, "ok"),
        ({"properties": {"x": {"type": "no such type"}}}, "ok"),
        ({"properties": {"x": {"$ref": "http://127.0.0.1:1/x.json"}}}, "ok"),
    ],
)
def test_the_schema_of_a_tool_keeps_no_call(schema: dict[str, Any], read: str) -> None:
    """What is wrong, or could keep the event loop for ever, is checked by the server."""
    tool = {"name": "f", "inputSchema": {"type": "object", **schema}}
    with scripted(list={"tools": [tool]}, call={"content": [{"type": "text", "text": "ok"}]}) as server:
        tools = mcp.tools(server.url).run()
        assert read in outcome(calling(tools, "f", x="a" * 40 + "!").run())
        halted = rxllm.chat(
            rxllm.Fake(rxllm.ToolCall("c1", "f", {"x": "b"}), "Done."),
            "Go.",
            tools=[replace(tools[0], approval=True)],
        ).run()
        edited = {"c1": {"x": "a" * 40 + "!"}}
        tools = [replace(tools[0], approval=True)]
        if read == "ok":
            assert outcome(rxllm.resume(rxllm.Fake("Done."), halted, approvals=edited, tools=tools).run()) == "ok"
        else:
            with pytest.raises(ValidationError, match=read):
                rxllm.resume(rxllm.Fake("Done."), halted, approvals=edited, tools=tools)


def test_a_server_that_asks_within_a_call_and_takes_no_answer_fails_it_in_time() -> None:
    def ask(request: Any) -> Reply:
        message = request.json
        if "method" not in message:
            return SILENT
        if message["method"] == "tools/call":
            return Reply([event({"jsonrpc": "2.0", "id": 7, "method": "ping"}), STALL])
        return reply_to(message, FOUND if message["method"] == "server/discover" else {"tools": [TOOL]})

    async def main(world: World) -> str:
        async with mcp.HTTP(world.serve(ask).url, timeout=30) as connection:
            return outcome(await calling(await mcp.tools(connection), "f", x=1))

    run = simulate(main, faults=())
    assert "did not answer tools/call within 30 s" in run.value
    assert 30 <= run.duration < 35


def test_a_key_is_not_in_an_error() -> None:
    def echo(request: Any) -> Reply:
        text = f"bad {request.headers['authorization']}"
        return Reply.of_json({"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": text}}, 400)

    with Loopback(echo) as server, pytest.raises(AdapterError) as raised:
        mcp.tools(server.url, headers={"authorization": "Bearer s3cret-key"}).run()
    assert "s3cret" not in repr(raised.value) + repr(raised.value.__cause__)
    assert "s3cret" not in repr(mcp.HTTP("http://u:s3cret@a/mcp"))


KEY = "s3cret-key"


@pytest.mark.parametrize("status", [200, 400])
def test_a_key_that_a_server_repeats_is_nowhere(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[Any] = []

    def echo(message: dict[str, Any]) -> Reply:
        error = {"code": -32000, "message": f"bad {KEY}", "data": {KEY: [f"Bearer {KEY}"]}}
        return Reply.of_json({"jsonrpc": "2.0", "id": message["id"], "error": error}, status)

    with scripted(call=echo) as server:
        url = f"{server.url.replace('//', f'//user:{KEY}@')}/?token={KEY}"
        tools = mcp.tools(url, headers={"authorization": f"Bearer {KEY}"}).run()
        model = rxllm.Fake(rxllm.ToolCall("c1", "f", {"x": 1}), "Done.")
        engine = rxllm.Engine(model, tools=tools, observers=[seen.append])
        result = rxllm.chat(engine, "Go.").run()
    assert "bad [key]" in outcome(result)
    assert seen
    assert KEY not in repr((seen, engine, tools, tools[0].handler)) + caplog.text + rxllm.serializer.to_json(result)
    with scripted(list=echo) as server, pytest.raises(AdapterError) as raised:
        mcp.tools(server.url, headers={"x-api-key": KEY}).run()
    error = raised.value
    assert KEY not in f"{error!r} {error.fields()} {error.__cause__!r} {error.__context__!r}"


@pytest.mark.parametrize(("size", "kept"), [(10, True), (5_000_000, False)])
def test_the_data_of_an_error_are_kept_unless_they_are_long(size: int, kept: bool) -> None:
    data = {"text": "x" * size}
    error = {"code": -32000, "message": "m" * size, "data": data}
    with scripted(list=lambda message: Reply.of_json({"id": message["id"], "error": error})) as server:
        found = failure(server)
    assert found.fields().get("metadata", {}) == ({"data": data} if kept else {})
    assert len(found.message) <= 500


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_host_carries_no_secret(status: int) -> None:
    headers = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "cookie": KEY}
    with Loopback(Reply.of_json({})) as other, Loopback(Reply(b"", status, {"Location": f"{other.url}/"})) as server:
        url = server.url.replace("//", f"//user:{KEY}@")
        with pytest.raises(AdapterError, match=f"HTTP {status}"):
            mcp.tools(url, headers=headers).run()
        assert not other.requests
        with pytest.raises(LLMError):
            mcp.tools(mcp.HTTP(url, headers=headers, client=lambda: httpx.AsyncClient(follow_redirects=True))).run()
        assert other.requests
        assert KEY not in repr([(request.path, request.headers, request.body) for request in other.requests])


def test_the_progress_of_other_calls_and_after_the_end_is_passed_over() -> None:
    def noisy(message: dict[str, Any]) -> Reply:
        tokens = (message["id"], 999, None, f"0{message['id']}", [1])
        others = [{"method": "notifications/progress", "params": {"progressToken": t, "progress": 1}} for t in tokens]
        own = {"id": message["id"], "result": {"content": []}}
        return Reply(b"".join(map(event, [*others, {"method": "notifications/progress"}, own, *others])))

    with scripted(call=noisy) as server:
        model = rxllm.Fake(rxllm.ToolCall("c1", "f", {"x": 1}), "Done.")
        events = list(rxllm.stream(model, "Go.", tools=mcp.tools(server.url).run()))
    assert [event.data for event in events if isinstance(event, rxllm.ToolProgress)] == [{"progress": 1}]


@pytest.mark.parametrize("versions", [5, None, "2026-07-28", [["2026-07-28"]], {"2026-07-28": 1}])
def test_strange_versions_are_not_the_modern_one(versions: Any) -> None:
    with scripted(discover={"supportedVersions": versions}, initialize={"protocolVersion": versions}) as server:
        assert failure(server).reason == "unsupported_feature"


@pytest.mark.parametrize("version", [None, "2024-11-05"])
def test_a_server_of_the_older_transport_is_named_as_such(version: str | None) -> None:
    """Its event stream is a GET, and the POST goes to another path."""
    server = Loopback(Reply(b"Method Not Allowed", 405))
    with server, pytest.raises(AdapterError, match=r"2024 HTTP\+SSE transport") as raised:
        mcp.tools(mcp.HTTP(server.url, version=version)).run()
    assert (raised.value.reason, raised.value.status) == ("unsupported_feature", 405)


def test_a_tool_with_faulty_headers_is_left_out_over_http() -> None:
    bad: list[Any] = [
        {"type": "string", "x-mcp-header": ""},
        {"type": "object", "x-mcp-header": "A"},
        {"type": "string", "x-mcp-header": "a b"},
        {"type": "string", "x-mcp-header": 1},
        {"items": {"type": "string", "x-mcp-header": "A"}},
    ]
    entries = [{"name": f"f{i}", "inputSchema": {"properties": {"p": place}}} for i, place in enumerate(bad)]
    twice = {name: {"type": "string", "x-mcp-header": name} for name in ("A", "a")}
    data = {"p": {"type": "string", "default": {"x-mcp-header": "a b"}}, "x-mcp-header": {"type": "string"}}
    entries += [
        {"name": "twice", "inputSchema": {"properties": twice}},
        {"name": "fine", "inputSchema": {"properties": data}},
    ]
    with scripted(list={"tools": entries}) as server:
        assert [tool.name for tool in mcp.tools(server.url).run()] == ["fine"]


def test_a_tool_with_too_many_headers_is_left_out_over_http() -> None:
    def headers(n: int) -> dict[str, Any]:
        places = {f"p{i}": {"type": "string", "x-mcp-header": f"h{i}"} for i in range(n)}
        return {"name": f"f{n}", "inputSchema": {"properties": places}}

    with scripted(list={"tools": [headers(100), headers(101)]}) as server:
        assert [tool.name for tool in mcp.tools(server.url).run()] == ["f100"]


def test_a_schema_with_an_address_in_it_is_not_fetched() -> None:
    with Loopback(Reply(b"{}")) as canary:
        schema = {"type": "object", "properties": {"x": {"$ref": f"{canary.url}/schema.json"}}}
        with scripted(list={"tools": [{"name": "f", "inputSchema": schema}]}, call={"content": []}) as server:
            calling(mcp.tools(server.url).run(), "f", x=1).run()
        assert not canary.requests
