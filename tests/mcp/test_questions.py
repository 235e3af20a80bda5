"""What a server asks the user halts the chat, and the answer goes on with the call, also in another process."""

from __future__ import annotations

import pickle
import sys
import textwrap
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rxllm
from rxllm import AskUserRequested, Fake, Nested, ToolCall, ToolContext, mcp, serializer, session
from rxllm.mcp import _tool_calls
from rxllm.testing.loopback import STALL, Reply
from tests.mcp import served
from tests.mcp.chats import calling, event, outcome, scripted
from tests.mcp.served import Seen
from tests.programs import python
from tests.runtime.support import ROOT

pytestmark = pytest.mark.sockets

FORM = {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}


def question(text: str = "Which size?", schema: Any = FORM, **params: Any) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": text, "requestedSchema": schema, **params}}


@pytest.mark.judges
def test_a_question_halts_the_chat_and_the_answer_goes_on(server: tuple[str, Seen], stdio: mcp.Stdio) -> None:
    for source in (server[0], stdio):
        tools = mcp.tools(source).run()
        halted = calling(tools, "order", item="hat").run()
        assert (halted.halted_reason, halted.pending_question) == ("ask_user", "Which size of hat?")
        assert list(halted.metadata["ask_user_opts"]["schema"]["properties"]) == ["size"]
        halted = serializer.from_json(serializer.to_json(halted))
        result = rxllm.resume(Fake("Done."), halted, results={"c1/question": "big"}, tools=tools).run()
        assert (outcome(result), result.output_text) == ("hat: big", "Done.")


def test_a_server_that_waits_inside_the_call_is_answered_in_a_second_call(handshake: tuple[str, Seen]) -> None:
    tools = mcp.tools(handshake[0]).run()
    halted = calling(tools, "confirm", item="hat").run()
    assert halted.pending_question == "Really hat?"
    halted = serializer.from_json(serializer.to_json(halted))
    result = rxllm.resume(Fake("Done."), halted, results={"c1/question": "big"}, tools=tools).run()
    assert outcome(result) == "hat: big"


@pytest.mark.judges
def test_a_server_that_does_not_know_its_state_is_called_anew_with_the_answer(stdio: mcp.Stdio) -> None:
    tools = mcp.tools(stdio).run()
    halted = calling(tools, "order", item="hat").run()
    stdio.close()  # the next process has another key
    result = rxllm.resume(Fake("Done."), halted, results={"c1/question": "big"}, tools=tools).run()
    assert outcome(result) == "hat: big"


def test_another_question_than_before_is_put_to_the_user() -> None:
    stale = {"code": -32602, "message": "Invalid or expired requestState"}

    def call(message: dict[str, Any]) -> Any:
        match message["params"]:
            case {"requestState": "old"}:
                return Reply.of_json({"jsonrpc": "2.0", "id": message["id"], "error": stale}, 400)
            case {"requestState": "new", "inputResponses": found}:
                return {"content": [{"type": "text", "text": found["a"]["content"]["size"]}]}
            case _:
                states.append("old" if not states else "new")
                asks = question("Which size?" if states == ["old"] else "Which size now?")
                return {"resultType": "input_required", "inputRequests": {"a": asks}, "requestState": states[-1]}

    states: list[str] = []
    assert conversation(call, "big", "small") == (["Which size?", "Which size now?", None], "small")


@pytest.mark.judges
def test_a_connection_may_choose_the_handshake_for_a_server_that_asks_inside_the_call(modern: tuple[str, Seen]) -> None:
    program = mcp.Stdio(sys.executable, str(served.__file__), env={"PYTHONPATH": str(ROOT)}, version="2025-06-18")
    http = mcp.HTTP(modern[0], version="2025-11-25")
    with program, http:
        for source in (program, http, pickle.loads(pickle.dumps(http))):
            tools = mcp.tools(source).run()
            halted = calling(tools, "confirm", item="hat").run()
            result = rxllm.resume(Fake("Done."), halted, results={"c1/question": "big"}, tools=tools).run()
            assert outcome(result) == "hat: big"


@pytest.mark.judges
def test_another_process_goes_on(modern: tuple[str, Seen]) -> None:
    halted = calling(mcp.tools(modern[0]).run(), "order", item="hat").run()
    script = f"""
    import rxllm, sys
    from rxllm import mcp, serializer
    halted = serializer.from_json(sys.stdin.read())
    answers = {{halted.pending_tool_call_id: "small"}}
    tools = mcp.tools({modern[0]!r}).run()
    result = rxllm.resume(rxllm.Fake("Done."), halted, results=answers, tools=tools).run()
    print([message.text for message in result.thread if message.role == "tool"], result.output_text)
    """
    ran = python("-c", textwrap.dedent(script), input=serializer.to_json(halted))
    assert ran.stdout == "['hat: small'] Done.\n", ran.stderr


def test_the_events_and_a_session_show_the_question(modern: tuple[str, Seen]) -> None:
    tools = mcp.tools(modern[0]).run()
    model = Fake(ToolCall("c1", "order", {"item": "hat"}), "Done.")
    events = [event.event for event in rxllm.stream(model, "Go.", tools=tools) if isinstance(event, Nested)]
    assert isinstance(events[0], AskUserRequested)
    turn = session.start(Fake(ToolCall("c1", "order", {"item": "hat"})), "Go.", tools=tools).run()
    assert turn.session.pending_question == "Which size of hat?"
    turn = session.reply(Fake("Done."), turn, "big", tools=tools).run()
    assert turn.output_text == "Done."


def asking(*rounds: dict[str, Any]) -> Any:
    """A tool that asks round after round; the last result has what it was answered."""
    answered: list[Any] = []

    def call(message: dict[str, Any]) -> dict[str, Any]:
        params = message["params"]
        found = {name: params[name] for name in ("inputResponses", "requestState") if name in params}
        answered.append((message["id"], found))
        if len(answered) <= len(rounds):
            return {"resultType": "input_required", **rounds[len(answered) - 1]}
        return {"content": [{"type": "text", "text": "ok"}]}

    return answered, call


def conversation(call: Any, *replies: Any) -> tuple[list[str | None], str]:
    """The questions, and what the model reads at the end."""
    with scripted(call=call) as server:
        tools = mcp.tools(server.url).run()
        result = calling(tools, "f").run()
        questions = [result.pending_question]
        for reply in replies:
            stored = serializer.from_json(serializer.to_json(result))
            result = rxllm.resume(Fake("Done."), stored, results={"c1/question": reply}, tools=tools).run()
            questions.append(result.pending_question)
    return questions, outcome(result) if result.halted_reason == "completed" else ""


def test_the_state_goes_back_as_it_is_and_the_id_is_new() -> None:
    answered, call = asking({"inputRequests": {"a": question()}, "requestState": '{"n": [1]} \u00e9'})
    assert conversation(call, "big") == (["Which size?", None], "ok")
    (first, nothing), (second, found) = answered
    assert (nothing, first != second) == ({}, True)
    assert found == {
        "inputResponses": {"a": {"action": "accept", "content": {"size": "big"}}},
        "requestState": '{"n": [1]} \u00e9',
    }


def test_without_a_state_none_is_sent() -> None:
    answered, call = asking({"inputRequests": {"a": question()}})
    conversation(call, "big")
    assert list(answered[1][1]) == ["inputResponses"]


def test_several_questions_are_asked_one_after_the_other_and_answered_together() -> None:
    answered, call = asking({"inputRequests": {"a": question("A?"), "b": question("B?")}, "requestState": "s"})
    assert conversation(call, "1", "2") == (["A?", "B?", None], "ok")
    assert len(answered) == 2
    assert answered[1][1]["inputResponses"]["b"]["content"] == {"size": "2"}


def test_a_server_may_ask_round_after_round() -> None:
    rounds = [{"inputRequests": {"a": question(f"{i}?")}, "requestState": f"s{i}"} for i in range(3)]
    answered, call = asking(*rounds)
    assert conversation(call, "x", "y", "z") == (["0?", "1?", "2?", None], "ok")
    assert [found.get("requestState") for _, found in answered] == [None, "s0", "s1", "s2"]


def test_a_server_may_only_want_to_be_called_again() -> None:
    answered, call = asking({"requestState": "s1"}, {"requestState": "s2"})
    assert conversation(call) == ([None], "ok")
    assert [found for _, found in answered] == [{}, {"requestState": "s1"}, {"requestState": "s2"}]


def test_the_page_of_a_question_by_url_is_shown() -> None:
    answered, call = asking({"inputRequests": {"a": question("Pay.", None, mode="url", url="https://pay.example/1")}})
    assert conversation(call, "done") == (["Pay. https://pay.example/1", None], "ok")
    assert answered[1][1]["inputResponses"] == {"a": {"action": "accept"}}


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "vscode://install?x",
        " https://pay.example",
        "https://pay.example/\x1b[2J",
        "https://",
        "//pay.example",
        "\ud83d",
        7,
        None,
    ],
)
def test_a_page_off_the_web_is_not_shown_and_fails_the_call(url: Any) -> None:
    answered, call = asking({"inputRequests": {"a": question("Pay.", None, mode="url", url=url)}})
    shown, read = conversation(call)
    assert shown == [None]
    assert "the address must begin with https:// or http://" in read
    assert len(answered) == 1


def test_a_page_off_the_web_fails_a_call_whose_server_waits_inside_it() -> None:
    cancelled: list[Any] = []

    def call(message: dict[str, Any]) -> Reply:
        asks = {"jsonrpc": "2.0", "id": 1, **question("Pay.", None, mode="url", url="javascript:alert(1)")}
        return Reply([event(asks), STALL])

    def cancel(message: dict[str, Any]) -> Reply:
        cancelled.append(message["params"])
        return Reply(status=202)

    shaken = {"initialize": {"protocolVersion": "2025-11-25"}, "initialized": Reply(status=202)}
    with scripted(call=call, cancelled=cancel, **shaken) as server:
        tools = mcp.tools(mcp.HTTP(server.url, version="2025-11-25")).run()
        read = outcome(calling(tools, "f").run())
    assert "the address must begin with https:// or http://" in read
    assert len(cancelled) == 1


@pytest.mark.parametrize(
    ("properties", "reply", "response"),
    [
        ({"a": {"type": "string"}}, "12", {"action": "accept", "content": {"a": "12"}}),
        ({"a": {"type": "integer"}}, " 12 ", {"action": "accept", "content": {"a": 12}}),
        ({"a": {"type": "number"}}, "1.5", {"action": "accept", "content": {"a": 1.5}}),
        ({"a": {"type": "boolean"}}, "Yes", {"action": "accept", "content": {"a": True}}),
        ({"a": {"type": "boolean"}}, "no", {"action": "accept", "content": {"a": False}}),
        ({"a": {"type": "array"}}, "x, y", {"action": "accept", "content": {"a": ["x", "y"]}}),
        ({"a": {}, "b": {}}, '{"a": 1, "b": 2}', {"action": "accept", "content": {"a": 1, "b": 2}}),
        ({"a": {}, "b": {}}, {"a": 1, "b": "x"}, {"action": "accept", "content": {"a": 1, "b": "x"}}),
        ({"a": {}, "b": {}}, {"action": "decline"}, {"action": "decline"}),
        ({}, "go on", {"action": "accept", "content": {}}),
        ({"a": {}}, '{"action": "decline"}', {"action": "decline"}),
        ({"a": {}}, '{"action": "accept", "content": {"a": 7}}', {"action": "accept", "content": {"a": 7}}),
    ],
)
def test_an_answer_in_text_or_as_a_mapping_fits_the_form(properties: Any, reply: Any, response: Any) -> None:
    answered, call = asking({"inputRequests": {"k": question(schema={"type": "object", "properties": properties})}})
    assert conversation(call, reply)[1] == "ok"
    assert answered[1][1]["inputResponses"] == {"k": response}


@pytest.mark.parametrize(("kind", "reply"), [("integer", "many"), ("boolean", "perhaps"), ("number", "")])
def test_an_answer_that_does_not_fit_is_asked_for_again(kind: str, reply: str) -> None:
    _, call = asking({"inputRequests": {"k": question(schema={"properties": {"a": {"type": kind}}})}})
    questions, _ = conversation(call, reply)
    assert questions == ["Which size?", f"Which size? ({reply!r} is not valid; answer with a JSON object)"]


SHIRT = {
    "type": "object",
    "properties": {"size": {"enum": ["S", "M"]}, "count": {"type": "integer"}},
    "required": ["size", "count"],
}


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ({"size": "S"}, '"count" is a required property'),
        ('{"size": "S"}', '"count" is a required property'),
        ({"size": "S", "count": "two"}, '"two" is not of type "integer"'),
        ('{"size": "L", "count": 2}', '"L" is not one of ["S","M"]'),
        ({"action": "accept"}, '"size" is a required property; "count" is a required property'),
        ({"action": "accept", "content": {"size": "S"}}, '"count" is a required property'),
        ({"action": "accept", "content": "S"}, '"S" is not of type "object"'),
    ],
)
def test_an_answer_that_does_not_fit_the_schema_is_asked_for_again_and_not_sent(reply: Any, fault: str) -> None:
    answered, call = asking({"inputRequests": {"k": question(schema=SHIRT)}, "requestState": "s"})
    (first, again, last), text = conversation(call, reply, {"size": "S", "count": 2})
    assert (first, last, text) == ("Which size?", None, "ok")
    assert again is not None
    assert again.startswith("Which size? (")
    assert again.endswith(f" is not valid: {fault}; answer with a JSON object)")
    assert [found.get("inputResponses") for _, found in answered] == [
        None,
        {"k": {"action": "accept", "content": {"size": "S", "count": 2}}},
    ]


def test_text_for_a_form_with_one_field_is_checked_too() -> None:
    _, call = asking({"inputRequests": {"k": question(schema={"properties": {"size": {"enum": ["S", "M"]}}})}})
    questions, text = conversation(call, "L", "M")
    fault = """('L' is not valid: "L" is not one of ["S","M"]; answer with a JSON object)"""
    assert (questions, text) == (["Which size?", f"Which size? {fault}", None], "ok")


@pytest.mark.parametrize("schema", [{"properties": {"a": {"type": "no such type"}}}, {"type": 7}, None])
def test_a_form_whose_schema_is_wrong_takes_every_answer(schema: Any) -> None:
    answered, call = asking({"inputRequests": {"k": question(schema=schema)}})
    assert conversation(call, {"a": 1})[1] == "ok"
    assert answered[1][1]["inputResponses"] == {"k": {"action": "accept", "content": {"a": 1}}}


_TWICE = {f"d{depth}": {"allOf": [{"$ref": f"#/$defs/d{depth + 1}"}] * 2} for depth in range(40)}
_MANY = [str(number) for number in range(500_000)]


@pytest.mark.parametrize(
    ("schema", "fault", "missing"),
    [
        ({"$defs": {**_TWICE, "d40": {}}, "$ref": "#/$defs/d0"}, "", ""),
        ({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**_TWICE, "d40": {}}}, "", ""),
        ({"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}, "does not match", "required"),
        ({"properties": {name: {"type": "string"} for name in _MANY}}, "", ""),
        ({"properties": {"b": {"type": "array", "uniqueItems": True}}}, "", "required"),
        ({"required": _MANY}, "", "required"),
    ],
)
def test_a_form_is_checked_in_a_moment_whatever_its_schema(schema: Any, fault: str, missing: str) -> None:
    """The server checks what would take longer."""
    reply = {"a": "a" * 40 + "!", "b": [{"x": number} for number in range(5_000)]}
    answer = {"action": "accept", "content": reply}
    found = _tool_calls._fault(answer, {"requestedSchema": schema})
    assert fault in found if fault else found == ""
    found = _tool_calls._fault(answer, {"requestedSchema": {**schema, "required": _MANY[:1_000]}})
    assert missing in found if missing else found == ""


@pytest.mark.parametrize(
    ("field", "fits", "fault"),
    [
        ({"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "m", "title": "Medium"}]}, "m", "l"),
        ({"type": "array", "items": {"type": "string", "enum": ["s", "m"]}}, ["s", "m"], ["l"]),
        ({"type": "array", "items": {"anyOf": [{"const": "s", "title": "Small"}]}, "minItems": 1}, ["s"], []),
        ({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]}, None, "long"),
        ({"type": "integer", "minimum": 3}, 3, 2),
    ],
)
def test_every_kind_of_field_is_checked(field: Any, fits: Any, fault: Any) -> None:
    params = {"requestedSchema": {"type": "object", "properties": {"a": field}, "required": ["a"]}}
    assert _tool_calls._fault({"action": "accept", "content": {"a": fits}}, params) == ""
    assert _tool_calls._fault({"action": "accept", "content": {"a": fault}}, params)


def test_an_answer_that_is_stored_by_another_program_is_checked() -> None:
    with scripted() as server:
        (tool,) = mcp.tools(server.url).run()
    context = ToolContext(ToolCall("c1", "f", {}), reply="big", tool_state={"requests": 3})
    with pytest.raises(rxllm.ToolError, match="question"):
        rxllm.run(rxllm.from_async_iter(lambda: _once(tool.bind({}, context))))


async def _once(make: Any) -> AsyncIterator[Any]:
    yield await make()


def test_a_question_may_be_denied(modern: tuple[str, Seen]) -> None:
    tools = mcp.tools(modern[0]).run()
    halted = calling(tools, "order", item="hat").run()
    result = rxllm.resume(Fake("Well."), halted, approvals={"c1": "I want no hat"}, tools=tools).run()
    assert "I want no hat" in outcome(result)
