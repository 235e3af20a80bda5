"""Calls that the provider runs once they are approved: approvals like any other, and an item that answers them."""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm import (
    ChatResult,
    Engine,
    EngineError,
    Fake,
    OpenAIResponses,
    ToolApprovalRequested,
    ToolCall,
    ToolExecutionStarted,
    ValidationError,
    halt,
    serializer,
    tool,
)
from rxllm import operators as ops
from rxllm import session as sessions
from rxllm.testing.loopback import Loopback, Reply
from tests.adapters.openai_responses.support import CREATED, done, item, message, response, whole
from tests.adapters.sdk import assert_fits
from tests.operators.journal import MemoryJournal

ASKED = item("mcp_approval_request", id="mcpr_1", name="shorten", arguments='{"url":"u"}', server_label="zip1")
RAN = item("mcp_call", id="mcp_1", name="shorten", arguments='{"url":"u"}', server_label="zip1", output="s")
HOSTED = ToolCall("c1", "shorten", {"url": "u"}, metadata={"hosted": True})


@tool
def shorten(url: str) -> str:
    """A tool of ours that has the same name."""
    raise AssertionError("the provider runs the call")


def answers(*bodies: bytes) -> Loopback:
    return Loopback([Reply(body) for body in bodies])


def asks(*items: dict[str, Any]) -> bytes:
    output = items or (ASKED,)
    return CREATED + b"".join(map(whole, output)) + response("completed", output=list(output))


SPEAKS = CREATED + whole(RAN) + done(1, message("m1", "It is s.")) + response("completed")


def engine_of(server: Loopback, **options: Any) -> Engine:
    return Engine(OpenAIResponses(base_url=server.url, api_key="k"), model="gpt-5.5", **options)


def sent(server: Loopback, index: int) -> list[dict[str, Any]]:
    body = server.requests[index].json
    assert_fits("openai.types.responses.response_create_params", "ResponseCreateParamsStreaming", body)
    return body["input"]


def decision(**fields: Any) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", **fields}


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (True, decision(approve=True)),
        (False, decision(approve=False, reason="the call was denied: it was not approved")),
        ("too long", decision(approve=False, reason="the call was denied: too long")),
    ],
)
def test_a_halted_chat_is_resumed_with_the_item_that_answers(verdict: Any, expected: dict[str, Any]) -> None:
    with answers(asks(), SPEAKS) as server:
        engine = engine_of(server, tools=[shorten], tool_result_encoder=lambda result: f"<{result}>")
        halted = rxllm.chat(engine, "Shorten u.").run()
        assert (halted.halted_reason, halted.error) == ("approval", None)
        (call,) = halted.pending_tool_calls
        assert (call.id, call.name, call.arguments) == ("mcpr_1", "shorten", {"url": "u"})
        halted = serializer.from_json(serializer.to_json(halted), ChatResult)
        engine = engine_of(server, tools=[shorten])
        result = rxllm.resume(engine, halted, approvals={"mcpr_1": verdict}).run()
        assert (result.output_text, result.halted_reason) == ("It is s.", "completed")
        assert sent(server, 1)[1:] == [ASKED, expected]


@pytest.mark.sockets
def test_a_decision_is_never_encoded_by_the_caller() -> None:
    with answers(asks(), SPEAKS) as server:
        engine = engine_of(server, tool_result_encoder=lambda result: f"<{result}>")
        rxllm.chat(engine, "Shorten u.", approve=lambda call: True).run()
        assert sent(server, 1)[1:] == [ASKED, decision(approve=True)]


@pytest.mark.sockets
def test_a_result_that_is_no_decision_denies_the_call() -> None:
    for result, fields in (("no", {"reason": "no"}), ({"approve": False, "reason": "no"}, {"reason": "no"}), ("", {})):
        with answers(asks(), SPEAKS) as server:
            halted = rxllm.chat(engine_of(server), "Shorten u.").run()
            rxllm.resume(engine_of(server), halted, results={"mcpr_1": result}).run()
            assert sent(server, 1)[-1] == decision(approve=False, **fields), result


def test_the_events_are_those_of_an_approval_and_nothing_runs_here() -> None:
    engine = Engine(Fake(HOSTED, "Done."), tools=[shorten], tool_executor=lambda *_: pytest.fail("executed"))
    events = list(rxllm.stream(engine, "Shorten u.", approve=lambda call: call.arguments == {"url": "u"}))
    assert [event.id for event in events if isinstance(event, ToolApprovalRequested)] == ["c1"]
    assert not any(isinstance(event, ToolExecutionStarted) for event in events)
    assert engine.adapter.requests[1].messages[-1].text == '{"approve":true}'
    assert engine.adapter.requests[1].messages[-1].tool_call_id == "c1"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (True, '{"approve":true}'),
        (False, "it was not approved"),
        ("not today", "not today"),
    ],
)
def test_an_approver_decides(answer: Any, told: str) -> None:
    model = Fake(HOSTED, "Done.")
    assert rxllm.chat(model, "Shorten u.", approve=lambda call: answer).run().output_text == "Done."
    assert told in model.requests[1].messages[-1].text


def test_an_approver_may_leave_it_to_the_caller() -> None:
    halted = rxllm.chat(Fake(HOSTED), "Shorten u.", approve=lambda call: halt("approval")).run()
    assert (halted.halted_reason, [call.id for call in halted.pending_tool_calls]) == ("approval", ["c1"])


def test_its_arguments_cannot_be_edited() -> None:
    halted = rxllm.chat(Fake(HOSTED), "Shorten u.").run()
    with pytest.raises(ValidationError, match="the provider runs it with the model's arguments; pass True, False"):
        rxllm.resume(Fake("Done."), halted, approvals={"c1": {"url": "v"}})
    with pytest.raises(ValidationError, match="the provider runs it"):
        rxllm.chat(Fake(HOSTED, "Done."), "Shorten u.", approve=lambda call: {"url": "v"}).run()


def test_a_call_without_a_decision_is_not_sent_back() -> None:
    halted = rxllm.chat(Fake(HOSTED), "Shorten u.").run()
    with pytest.raises(EngineError, match="shorten"):
        rxllm.resume(Fake("Done."), halted)
    with pytest.raises(EngineError, match="c1"):
        rxllm.chat(Fake("Done."), halted.thread + "And?").run()


def test_an_eager_tool_of_the_same_name_does_not_start() -> None:
    @tool(eager=True)
    def shorten(url: str) -> str:
        raise AssertionError

    @tool
    def fine() -> int:
        return 1

    result = rxllm.chat(Fake([HOSTED, ToolCall("c2", "fine", {})]), "Hi", tools=[shorten, fine]).run()
    assert [call.id for call in result.metadata["approval_tool_calls"]] == ["c1"]
    assert [message.tool_call_id for message in result.thread if message.role == "tool"] == ["c2"]


def test_two_calls_and_a_tool_of_ours_are_decided_together() -> None:
    @tool(approval=True)
    def pay(amount: int) -> str:
        return f"paid {amount}"

    model = Fake(
        [HOSTED, ToolCall("c2", "shorten", {}, metadata={"hosted": True}), ToolCall("c3", "pay", {"amount": 5})],
        "Done.",
    )
    halted = rxllm.chat(model, "Go.", tools=[pay]).run()
    assert [call.id for call in halted.pending_tool_calls] == ["c1", "c2", "c3"]
    rxllm.resume(model, halted, approvals={"c1": True, "c2": False, "c3": True}, tools=[pay]).run()
    assert [entry.text for entry in model.requests[1].messages[-3:]] == [
        '{"approve":true}',
        '{"error":"the call was denied: it was not approved"}',
        "paid 5",
    ]


def test_inside_an_agent_and_in_a_session() -> None:
    agent = Engine(Fake(HOSTED, "Short."), model="inner").as_tool(name="helper", description="Helps.")
    model = Fake(ToolCall("a", "helper", {"prompt": "Shorten."}), "Done.")
    turn = sessions.start(Engine(model, tools=[agent]), "Go.").run()
    assert (turn.session.status, [call.id for call in turn.session.pending_tool_calls]) == ("awaiting_tools", ["a/c1"])
    turn = sessions.resume(Engine(model, tools=[agent]), turn.session, approvals={"a/c1": True}).run()
    assert turn.result.output_text == "Done."


def test_a_journal_asks_once() -> None:
    asked: list[str] = []

    def approve(call: ToolCall) -> bool:
        asked.append(call.id)
        return True

    journal = MemoryJournal()
    for model in (Fake(HOSTED, "Done."), Fake(lambda request: pytest.fail("asked again"))):
        stream = rxllm.stream(model, "Go.", approve=approve).pipe(ops.journaled(journal), ops.to_chat_result())
        assert stream.run().output_text == "Done."
        journal = MemoryJournal(journal.entries)
    assert asked == ["c1"]
