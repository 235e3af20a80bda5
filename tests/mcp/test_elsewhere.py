"""Tools of a server in other places than one chat: pickled, in races and agents, behind an API, and out of date."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import httpx
import pytest

import rxllm
from rxllm import ChatCompleted, Engine, Fake, Nested, ToolCall, ToolExecutionCompleted, mcp, web
from tests.mcp.chats import TOOL, calling, outcome, program, scripted
from tests.programs import python

pytestmark = pytest.mark.sockets

RESULT = {"content": [{"type": "text", "text": "found"}]}


def engine(url: str) -> Engine:
    return Engine(Fake(ToolCall("c1", "f", {"x": 1}), "Done."), tools=mcp.tools(url).run())


# Pickled


@pytest.mark.judges
def test_an_engine_with_tools_over_http_works_in_another_process() -> None:
    with scripted(call=RESULT) as server:
        script = """
        import pickle, sys, rxllm
        result = rxllm.chat(pickle.load(sys.stdin.buffer), "Go.").run()
        print([message.text for message in result.thread if message.role == "tool"])
        """
        data = pickle.dumps(engine(server.url))
        load = f"import pickle, io, sys; sys.stdin = io.TextIOWrapper(io.BytesIO({data!r}))\n"
        lines = [line.removeprefix(" " * 8) for line in script.splitlines()]
        ran = python("-c", load + "\n".join(lines))
        assert ran.stdout == "['found']\n", ran.stderr


def test_a_pickle_has_no_session_and_no_secret_and_says_so() -> None:
    with scripted(call=RESULT) as server:
        url = f"{server.url}/?token=s3cret-1"
        tools = mcp.tools(url, headers={"authorization": "Bearer s3cret-2", "x-team": "blue"}).run()
        data = pickle.dumps(tools)
        assert b"s3cret" not in data
        assert b"blue" in data
        text = outcome(calling(pickle.loads(data), "f", x=1).run())
        assert "pickled without the secrets in their headers and URL; call mcp.tools(...) again in the process" in text
        assert len(server.requests) == 2


@pytest.mark.judges
def test_a_program_stays_where_it_is() -> None:
    with program("serve()") as connection:
        tools = mcp.tools(connection).run()
        with pytest.raises(pickle.PicklingError, match="a Stdio cannot be pickled; list its tools"):
            pickle.dumps(Engine(Fake("Hi."), tools=tools))


# In other streams


def test_a_race_a_hedge_an_agent_and_an_api_call_them() -> None:
    with scripted(call=RESULT) as server:
        streams = [rxllm.stream(engine(server.url), "Go.") for _ in range(2)]
        assert final(rxllm.race(*streams)) == "found"
        twice = Engine(Fake(lambda request: "Done." if len(request.messages) > 1 else ToolCall("c1", "f", {"x": 1})))
        stream = rxllm.stream(twice, "Go.", tools=mcp.tools(server.url).run())
        assert final(rxllm.hedge(stream, 0.001)) == "found"
        agent = engine(server.url).as_tool(name="agent")
        model = Fake(ToolCall("a", "agent", {"prompt": "Go."}), "Outer.")
        events = list(rxllm.stream(model, "Go.", tools=[agent]))
        inner = [event.event for event in events if isinstance(event, Nested)]
        assert [event.result for event in inner if isinstance(event, ToolExecutionCompleted)] == ["found"]
        app = web.openai_app({"m": engine(server.url)})
        assert asyncio.run(_posted(app)) == "Done."
        responses = rxllm.generate_many(engine(server.url), ["a"])
        assert [response.tool_calls[0].name for response in responses] == ["f"]


def final(events: rxllm.Stream[Any]) -> str:
    last = events.run()
    assert isinstance(last, ChatCompleted)
    return outcome(last.result)


async def _posted(app: Any) -> str:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "Go."}]}
        answer = await client.post("/v1/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]


# Strange and stale


def test_a_schema_that_refers_to_itself_is_sent_and_checked_by_its_server() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    with scripted(call=RESULT, list={"tools": [{**TOOL, "inputSchema": schema}]}) as server:
        tools = mcp.tools(server.url).run()
        assert outcome(calling(tools, "f", x={"next": {"next": {}}}).run()) == "found"
        assert server.requests[-1].json["params"]["arguments"] == {"x": {"next": {"next": {}}}}
        assert tools[0].schema == schema


def test_a_name_of_ten_thousand_characters_is_called_by_it() -> None:
    name = "n" * 10_000
    with scripted(call=RESULT, list={"tools": [{**TOOL, "name": name}]}) as server:
        tools = mcp.tools(server.url).run()
        assert outcome(calling(tools, "n" * 64, x=1).run()) == "found"
        assert server.requests[-1].json["params"]["name"] == name
    with scripted(call={}, list={"tools": [{**TOOL, "name": "n" * 10_000}]}) as server:
        tools = mcp.tools(server.url).run()
    assert len(outcome(calling(tools, "n" * 64, x=1).run())) < 500


def test_a_schema_that_changes_after_the_list_is_the_servers_error() -> None:
    schemas = iter(({"type": "object"}, {"type": "object", "required": ["y"]}))

    def call(message: dict[str, Any]) -> dict[str, Any]:
        lacks = "y" not in message["params"]["arguments"]
        return {"isError": True, "content": [{"type": "text", "text": "y is required"}]} if lacks else RESULT

    with scripted(call=call, list=lambda message: {"tools": [{**TOOL, "inputSchema": next(schemas)}]}) as server:
        assert "y is required" in outcome(calling(mcp.tools(server.url).run(), "f").run())
        assert "are invalid" in outcome(calling(mcp.tools(server.url).run(), "f").run())
