"""What a server says in an odd form is read, or it is said that it could not be read."""

from __future__ import annotations

import base64
import logging
from typing import Any

import pytest

import rxllm
from rxllm import Fake, ToolCall, ToolExecutionCompleted, ToolProgress, mcp
from rxllm.testing import PNG
from rxllm.testing.loopback import Reply
from rxllm.values import FilePart, ImagePart
from tests.mcp.chats import FOUND, TOOL, calling, outcome, program, reply_to, scripted

pytestmark = pytest.mark.sockets


def read_of(result: Any) -> str:
    """What the model reads of a call with this result."""
    with scripted(call=result) as server:
        return outcome(calling(mcp.tools(server.url).run(), "f").run())


def events_of(result: Any) -> list[Any]:
    with scripted(call=result) as server:
        model = Fake(ToolCall("c1", "f", {}), "Done.")
        return list(rxllm.stream(model, "Go.", tools=mcp.tools(server.url).run()))


def files_in(events: list[Any]) -> list[Any]:
    return [event.data for event in events if isinstance(event, ToolProgress)]


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image(data: str, **fields: Any) -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": "image/png", **fields}


# Structured content


LIMITED = {"code": "RATE_LIMITED", "retry_after": 30}


@pytest.mark.parametrize("content", [[], [text("Too many requests.")], [image("aGVsbG8=")]])
def test_the_data_of_an_error_are_in_what_the_model_reads(content: Any) -> None:
    result = {"isError": True, "content": content, "structuredContent": LIMITED}
    read = read_of(result)
    assert "RATE_LIMITED" in read
    assert "30" in read
    assert content != [text("Too many requests.")] or "Too many requests." in read
    (error,) = [event.error for event in events_of(result) if isinstance(event, ToolExecutionCompleted)]
    assert "RATE_LIMITED" in str(error)


def test_an_error_that_says_nothing_is_called_that() -> None:
    assert "the tool failed without an explanation" in read_of({"isError": True, "content": []})
    assert "the tool failed without an explanation" in read_of(
        {"isError": True, "content": [], "structuredContent": {}}
    )


@pytest.mark.parametrize(
    "content", [[image("aGVsbG8=")], [text("3 notes were found.")], [text("3 notes."), image("aGVsbG8=")]]
)
def test_a_picture_or_a_summary_does_not_replace_structured_content(content: Any) -> None:
    data = {"notes": ["a", "b", "c"]}
    (result,) = [
        event.result
        for event in events_of({"content": content, "structuredContent": data})
        if isinstance(event, ToolExecutionCompleted)
    ]
    assert result.endswith('\n{"notes":["a","b","c"]}')
    assert read_of({"content": content, "structuredContent": data}) == result


@pytest.mark.parametrize(
    ("content", "data", "read"),
    [
        ([text('{"a": 1}')], {"a": 1}, '{"a": 1}'),
        ([text('{"a": 1}'), image("aGVsbG8=")], {"a": 1}, '{"a": 1}\n[image/png, 5 bytes]'),
        ([text("9")], {"result": 9}, "9"),
        ([text("9")], {"result": "9"}, "9"),
        ([text("a"), text("b")], {"result": ["a", "b"]}, "a\nb"),
        ([text('{"a": 1}'), text('{"a": 2}')], {"result": [{"a": 1}, {"a": 2}]}, '{"a": 1}\n{"a": 2}'),
        ([], {"a": 1}, '{"a":1}'),
        ([text("[1]")], [1], "[1]"),
    ],
)
def test_structured_content_that_the_text_repeats_is_read_once(content: Any, data: Any, read: str) -> None:
    assert read_of({"content": content, "structuredContent": data}) == read


# Blocks and results in other forms


@pytest.mark.parametrize(
    ("result", "read"),
    [
        ({"content": "hello"}, "hello"),
        ({"content": [{"text": "hello"}]}, "hello"),
        ({"content": {"type": "text", "text": "hello"}}, "hello"),
        ({"content": ["hel", "lo"]}, "hel\nlo"),
        ({"content": [{"type": "markdown", "text": "hello"}]}, "hello"),
        ({"toolResult": {"a": 1}}, '{"toolResult":{"a":1}}'),
        ({"content": [], "toolResult": {"a": 1}}, '{"toolResult":{"a":1}}'),
        ({"answer": 42, "_meta": {"m": 1}, "resultType": "complete"}, '{"answer":42}'),
        ({"content": []}, ""),
        ({}, ""),
    ],
)
def test_a_result_in_another_form_is_read(result: Any, read: str) -> None:
    assert read_of(result) == read


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"type": "video", "uri": "v.mp4"}, '{"type":"video","uri":"v.mp4"}'),
        ({"type": "text"}, '{"type":"text"}'),
        ({"type": "text", "text": 5}, '"text":5'),
        ({"type": "image", "mimeType": "image/png"}, '"mimeType":"image/png"'),
        ({"type": "resource", "resource": {"uri": "file:///a"}}, "file:///a"),
        ({"type": "resource_link"}, "resource_link"),
        (7, "7"),
        (None, "null"),
        ([text("hi")], "hi"),
    ],
)
def test_a_block_that_cannot_be_read_is_named_beside_the_others(block: Any, named: str) -> None:
    first, read = read_of({"content": [text("here"), block]}).split("\n")
    assert first == "here"
    assert read.startswith("[the server sent a block that cannot be read: ")
    assert named in read
    assert named in read_of({"content": block if block is not None else [None]})


def test_a_long_block_that_cannot_be_read_is_clipped() -> None:
    assert len(read_of({"content": [{"type": "video", "data": "x" * 1_000_000}]})) < 300


def test_an_error_in_another_form_is_read() -> None:
    assert "no such city" in read_of({"isError": True, "content": "no such city"})
    assert "no such city" in read_of({"isError": True, "error": "no such city"})


# Base64


BASE64 = base64.b64encode(PNG.to_binary()).decode()
SPELLINGS = {
    "with line breaks": "\n".join(BASE64[i : i + 20] for i in range(0, len(BASE64), 20)) + "\r\n",
    "without padding": BASE64.rstrip("="),
    "as a data URL": f"data:image/png;base64,{BASE64}",
    "as a data URL of one's own making": f"DATA:image/png;charset=utf-8;base64,{BASE64}",
    "in the alphabet of URLs": base64.urlsafe_b64encode(PNG.to_binary()).decode(),
}


@pytest.mark.parametrize("data", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("place", ["image", "resource"])
def test_a_file_is_read_however_its_base64_is_written(data: str, place: str) -> None:
    block = {"type": "resource", "resource": {"uri": "a", "blob": data, "mimeType": "image/png"}}
    events = events_of({"content": [text("here"), image(data) if place == "image" else block]})
    (result,) = [event.result for event in events if isinstance(event, ToolExecutionCompleted)]
    assert result == "here\n[image/png, 70 bytes]"
    (part,) = files_in(events)
    assert isinstance(part, ImagePart)
    assert part.image.to_binary() == PNG.to_binary()


def test_bytes_that_only_the_alphabet_of_urls_has_are_read() -> None:
    (part,) = files_in(events_of({"content": [{"type": "audio", "data": "-_8", "mimeType": "audio/wav"}]}))
    assert part == FilePart({"mime_type": "audio/wav", "data": b"\xfb\xff"})


@pytest.mark.parametrize("data", ["%%%", "a", "data:image/png", "data:image/png;base64,%%%", "é"])
def test_a_picture_that_is_not_base64_takes_no_text_with_it(data: str) -> None:
    read = read_of({"content": [text("here"), image(data), text("there")]}).split("\n")
    assert (read[0], read[2]) == ("here", "there")
    assert "image/png data that is not base64" in read[1]


def test_a_file_without_a_type_is_kept() -> None:
    blocks = [{"type": "image", "data": BASE64}, {"type": "image", "data": f"data:image/png;base64,{BASE64}"}]
    other, picture = files_in(events_of({"content": blocks}))
    assert other.file == {"mime_type": "application/octet-stream", "data": PNG.to_binary()}
    assert picture.image.mime_type == "image/png"


# Lists of tools


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "bad"},
        {"name": "bad", "inputSchema": None},
        {"name": "bad", "inputSchema": []},
        {"inputSchema": {"type": "object"}},
        {"name": 3, "inputSchema": {}},
        "bad",
        None,
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_bad_tool_is_left_out_with_a_warning(bad: Any, is_first: bool, caplog: pytest.LogCaptureFixture) -> None:
    with scripted(list={"tools": [bad, TOOL] if is_first else [TOOL, bad]}, call={"content": [text("ok")]}) as server:
        tools = mcp.tools(server.url).run()
        assert [tool.name for tool in tools] == ["f"]
        assert outcome(calling(tools, "f").run()) == "ok"
    (record,) = [record for record in caplog.records if "is omitted" in record.message]
    assert (record.name, record.levelno) == ("rxllm", logging.WARNING)
    assert "bad" not in str(bad) or "bad" in record.message


def test_a_cursor_that_repeats_ends_the_list_with_what_was_listed(caplog: pytest.LogCaptureFixture) -> None:
    with scripted(list={"tools": [TOOL], "nextCursor": "same"}) as server:
        assert [tool.name for tool in mcp.tools(server.url).run()] == ["f"]
        assert len(server.requests) == 3
    assert "repeats itself at the cursor 'same'" in caplog.text


def test_a_last_page_that_repeats_its_cursor_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    def page(message: dict[str, Any]) -> Any:
        cursor = message["params"].get("cursor", "first")
        return {"tools": [{**TOOL, "name": cursor}], "nextCursor": "second"}

    with scripted(list=page) as server:
        assert [tool.name for tool in mcp.tools(server.url).run()] == ["first", "second"]
    assert "repeats itself" in caplog.text


def test_cursors_that_go_in_a_circle_end_the_list() -> None:
    after = {None: "a", "a": "b", "b": "a"}

    def page(message: dict[str, Any]) -> Any:
        cursor = message["params"].get("cursor")
        return {"tools": [{**TOOL, "name": cursor or "first"}], "nextCursor": after[cursor]}

    with scripted(list=page) as server:
        assert [tool.name for tool in mcp.tools(server.url).run()] == ["first", "a", "b"]


@pytest.mark.parametrize("cursor", [5, {"page": 1}, [1], ""])
def test_a_cursor_of_another_type_that_repeats_ends_the_list_too(cursor: Any) -> None:
    with scripted(list={"tools": [TOOL], "nextCursor": cursor}) as server:
        assert [tool.name for tool in mcp.tools(server.url).run()] == ["f"]


# Ids


@pytest.mark.parametrize("echo", [str, float], ids=["text", "a float"])
def test_an_id_that_is_echoed_in_another_type_is_matched(echo: Any) -> None:
    def odd(message: dict[str, Any], result: Any) -> Reply:
        return reply_to({"id": echo(message["id"])}, result)

    with scripted(
        discover=lambda message: odd(message, FOUND),
        list=lambda message: odd(message, {"tools": [TOOL]}),
        call=lambda message: odd(message, {"content": [text("ok")]}),
    ) as server:
        assert outcome(calling(mcp.tools(server.url).run(), "f").run()) == "ok"


def test_a_token_that_is_echoed_as_text_is_matched() -> None:
    def progress(message: dict[str, Any]) -> Reply:
        notice = {"method": "notifications/progress", "params": {"progressToken": str(message["id"]), "progress": 1}}
        return Reply.of_json([notice, {"id": message["id"], "result": {"content": [text("ok")]}}])

    assert files_in(events_of(progress)) == [{"progress": 1}]


@pytest.mark.judges
@pytest.mark.parametrize("echo", ["str", "float"])
def test_a_program_may_echo_ids_in_another_type(echo: str) -> None:
    body = f"""
    plain = send
    def send(**message): plain(**{{**message, "id": {echo}(message["id"])}})
    def progress(message):
        params = {{"progressToken": {echo}(message["id"]), "progress": 1}}
        print(json.dumps({{"jsonrpc": "2.0", "method": "notifications/progress", "params": params}}), flush=True)
    serve(progress)
    """
    with program(body) as connection:
        model = Fake(ToolCall("c1", "f", {}), "Done.")
        events = list(rxllm.stream(model, "Go.", tools=mcp.tools(connection).run()))
    assert files_in(events) == [{"progress": 1}]
    (result,) = [event.result for event in events if isinstance(event, ToolExecutionCompleted)]
    assert result.isdecimal()


@pytest.mark.judges
@pytest.mark.parametrize("id", ["None", "'x1'", "[1]"])
def test_an_answer_to_no_request_is_logged(id: str, caplog: pytest.LogCaptureFixture) -> None:
    body = f"""
    plain = send
    def send(**message): plain(**{{**message, "id": {id}}}); plain(**message)
    serve()
    """
    with program(body) as connection:
        assert "f" in [tool.name for tool in mcp.tools(connection).run()]
    assert "answers a request that nobody has sent" in caplog.text
