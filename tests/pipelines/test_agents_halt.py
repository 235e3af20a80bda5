"""Agents that halt for the caller, at any depth, and go on with the answers."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from reactivex import operators as rx

import rxllm
from rxllm import (
    AdapterError,
    ChatResult,
    Engine,
    EngineError,
    Fake,
    Session,
    StepResult,
    Thread,
    ToolCall,
    ValidationError,
    ask_user,
    halt,
    serializer,
    session,
    tool,
    tool_result,
    user,
)
from rxllm import operators as ops
from rxllm.events import ChatCompleted, Event, Nested, StepCompleted, ToolExecutionCompleted, ToolExecutionStarted
from rxllm.tools import AgentTool

ran: list[str] = []


@pytest.fixture(autouse=True)
def _none_ran() -> None:
    ran.clear()


@tool(approval=True)
def pay(amount: int = 5) -> str:
    ran.append(f"paid {amount}")
    return f"paid {amount}"


@tool
def look() -> str:
    ran.append("looked")
    return "looked"


@tool
def choose() -> Any:
    ran.append("asked")
    return ask_user("Which city?", choices=["Lima", "Rome"])


sign = tool(name="sign", manual=True)
TOOLS = [pay, look, choose, sign]


def answering(request: Any) -> Any:
    """Repeat what the last tools or the last user said."""
    texts = [message.text for message in request.messages[1:] if message.role != "assistant"]
    return f"I have: {', '.join(texts)}"


def model(*calls: ToolCall) -> Fake:
    """A model that makes `calls` first, and then says what it got."""
    return Fake(lambda request: list(calls) if len(request.messages) == 1 else answering(request))


def agent(name: str, *calls: ToolCall, tools: Any = TOOLS, **options: Any) -> AgentTool:
    return Engine(model(*calls), tools=tools).as_tool(name=name, **options)


def call(id: str, name: str) -> ToolCall:
    return ToolCall(id, name, {"prompt": "go"})


def nested(depth: int, *calls: ToolCall) -> Engine:
    """A chat whose agents are `depth` deep; the innermost one makes `calls`. Their calls are c1, c2, ..."""
    tools: list[Any] = TOOLS
    for level in range(depth, 0, -1):
        tools = [agent(f"agent{level}", *calls, tools=tools)]
        calls = (call(f"c{level}", f"agent{level}"),)
    return Engine(model(*calls), tools=tools)


def stored(value: Any) -> Any:
    again = serializer.from_json(serializer.to_json(value))
    assert again == value
    return again


def ids(result: ChatResult) -> list[str]:
    return [call.id for call in result.pending_tool_calls]


PATHS = {1: "c1/", 2: "c1/c2/", 3: "c1/c2/c3/"}
depths = pytest.mark.parametrize("depth", PATHS)


@depths
def test_an_approval_inside_halts_the_chat_and_runs_once_when_it_goes_on(depth: int) -> None:
    engine = nested(depth, ToolCall("x", "pay"), ToolCall("y", "look"))
    halted = stored(rxllm.chat(engine, "Go").run())
    assert (halted.halted_reason, ids(halted), ran) == ("approval", [PATHS[depth] + "x"], ["looked"])
    assert halted.pending_tool_calls[0].name == "pay"
    done = rxllm.resume(engine, halted.thread, approvals={call.id: True for call in halted.pending_tool_calls}).run()
    assert (done.halted_reason, ran) == ("completed", ["looked", "paid 5"])
    assert done.output_text == "I have: " * (depth + 1) + "paid 5, looked"
    assert not any("agents" in message.metadata for message in done.thread)


@depths
def test_a_denial_inside_is_for_the_agents_model(depth: int) -> None:
    engine = nested(depth, ToolCall("x", "pay"))
    halted = rxllm.chat(engine, "Go").run()
    done = rxllm.resume(engine, halted, approvals={PATHS[depth] + "x": "too much"}).run()
    assert "the call was denied: too much" in done.output_text
    assert ran == []


@depths
def test_a_manual_tool_inside_is_answered_by_its_path(depth: int) -> None:
    engine = nested(depth, ToolCall("x", "sign"))
    halted = stored(rxllm.chat(engine, "Go").run())
    assert (halted.halted_reason, ids(halted)) == ("manual_tool_calls", [PATHS[depth] + "x"])
    done = rxllm.resume(engine, halted, results={PATHS[depth] + "x": "signed"}).run()
    assert done.output_text == "I have: " * (depth + 1) + "signed"


@depths
def test_a_question_inside_is_answered_by_its_path(depth: int) -> None:
    engine = nested(depth, ToolCall("x", "choose"))
    halted = stored(rxllm.chat(engine, "Go").run())
    assert (halted.halted_reason, halted.pending_question) == ("ask_user", "Which city?")
    assert (halted.pending_tool_call_id, ids(halted)) == (PATHS[depth] + "x", [])
    assert halted.metadata["ask_user_opts"] == {"choices": ["Lima", "Rome"]}
    assert halted.thread.last is not None
    assert halted.thread.last.tool_calls  # the question is in the agent's thread
    done = rxllm.resume(engine, halted, results={halted.pending_tool_call_id: "Lima"}).run()
    assert done.output_text == "I have: " * (depth + 1) + "<awaiting user response>, Lima"
    assert ran == ["asked"]


@depths
def test_a_question_without_an_answer_stays_open(depth: int) -> None:
    engine = nested(depth, ToolCall("x", "choose"))
    halted = rxllm.chat(engine, "Go").run()
    again = stored(rxllm.resume(engine, halted).run())
    assert (again.halted_reason, again.pending_tool_call_id) == ("ask_user", PATHS[depth] + "x")
    done = rxllm.resume(engine, again, results={PATHS[depth] + "x": "Lima"}).run()
    assert done.halted_reason == "completed"
    assert ran == ["asked"]


@depths
def test_what_waits_must_be_answered_before_any_tool_runs(depth: int) -> None:
    engine = nested(depth, ToolCall("x", "pay"), ToolCall("y", "sign"))
    halted = rxllm.chat(engine, "Go").run()
    assert ids(halted) == [PATHS[depth] + id for id in ("y", "x")]  # manual ones first, as always
    with pytest.raises(EngineError) as caught:
        rxllm.resume(engine, halted, approvals={PATHS[depth] + "x": True}).run()
    assert caught.value.reason == "missing_tool_results"
    assert caught.value.metadata == {"tool_call_ids": [PATHS[depth] + "y"], "tool_names": ["sign"]}
    with pytest.raises(ValidationError, match="not the id of an unanswered tool call"):
        rxllm.resume(engine, halted, approvals={"x": True}).run()
    with pytest.raises(ValidationError, match="manual tool"):
        rxllm.resume(engine, halted, approvals=dict.fromkeys(ids(halted), True)).run()
    assert ran == []
    answers: Any = {"approvals": {PATHS[depth] + "x": True}, "results": {PATHS[depth] + "y": "signed"}}
    assert rxllm.resume(engine, halted, **answers).run().output_text.endswith("paid 5, signed")


@depths
def test_an_approver_may_decide_when_it_goes_on(depth: int) -> None:
    engine = nested(depth, ToolCall("x", "pay"))
    halted = rxllm.chat(engine, "Go").run()
    done = rxllm.resume(engine, halted, approve=lambda call: True).run()
    assert (done.halted_reason, ran) == ("completed", ["paid 5"])


def test_the_events_of_both_parts_are_lawful_and_fold_to_the_results() -> None:
    engine = nested(2, ToolCall("x", "pay"))
    first = list(rxllm.stream(engine, "Go").pipe(ops.verify()))
    halted = stored(first)[-1].result
    assert [type(event) for event in first].count(ToolExecutionCompleted) == 0
    second = list(rxllm.stream_resume(engine, halted, approvals={"c1/c2/x": True}).pipe(ops.verify()))
    assert stored(second) == second
    started = [event for event in second if isinstance(event, ToolExecutionStarted)]
    assert [event.id for event in started] == ["c1"]
    assert second[-1] == ChatCompleted(rxllm.resume(engine, halted, approvals={"c1/c2/x": True}).run())


def test_telemetry_of_a_halted_agent_is_not_cancelled() -> None:
    told: list[Any] = []
    engine = Engine(model(call("c1", "bank")), tools=[agent("bank", ToolCall("x", "pay"))], observers=[told.append])
    rxllm.chat(engine, "Go").run()
    finished = [(event.tool, event.outcome) for event in told if type(event).__name__ == "ToolFinished"]
    assert finished == [("bank", "completed")]


# Siblings


def test_one_agent_halts_and_its_sibling_completes() -> None:
    engine = Engine(
        model(call("a", "bank"), call("b", "scout")),
        tools=[agent("bank", ToolCall("x", "pay")), agent("scout", ToolCall("x", "look"))],
    )
    halted = stored(rxllm.chat(engine, "Go").run())
    assert (ids(halted), ran) == (["a/x"], ["looked"])
    assert [message.tool_call_id for message in halted.thread if message.role == "tool"] == ["b"]
    done = rxllm.resume(engine, halted, approvals={"a/x": True}).run()
    assert done.output_text == "I have: I have: paid 5, I have: looked"
    assert ran == ["looked", "paid 5"]


def test_two_agents_with_the_same_ids_halt_for_different_things() -> None:
    engine = Engine(
        model(call("a", "bank"), call("b", "guide")),
        tools=[agent("bank", ToolCall("x", "pay")), agent("guide", ToolCall("x", "choose"))],
    )
    halted = stored(rxllm.chat(engine, "Go").run())
    assert (halted.halted_reason, ids(halted), halted.pending_tool_call_id) == ("ask_user", ["a/x"], "b/x")
    paid = stored(rxllm.resume(engine, halted, approvals={"a/x": True}).run())
    assert (paid.halted_reason, ids(paid), paid.pending_tool_call_id) == ("ask_user", [], "b/x")
    done = rxllm.resume(engine, paid, results={"b/x": "Lima"}).run()
    assert done.output_text == "I have: I have: paid 5, I have: <awaiting user response>, Lima"
    assert ran == ["asked", "paid 5"]
    both = rxllm.resume(engine, halted, approvals={"a/x": False}, results={"b/x": "Rome"}).run()
    assert both.output_text.endswith("Rome")


def test_questions_are_answered_one_by_one_the_chats_own_last() -> None:
    def guide(name: str) -> AgentTool:
        return agent(name, ToolCall("x", "choose"))

    calls = [call("a", "ann"), ToolCall("own", "choose"), call("b", "bob")]
    engine = Engine(model(*calls), tools=[guide("ann"), guide("bob"), choose])
    result = stored(rxllm.chat(engine, "Go").run())
    asked: list[str] = []
    while result.halted_reason == "ask_user" and result.pending_tool_call_id != "own":
        asked.append(result.pending_tool_call_id)
        result = stored(rxllm.resume(engine, result, results={result.pending_tool_call_id: f"to {asked[-1]}"}).run())
    assert asked == ["a/x", "b/x"]
    assert (result.halted_reason, result.pending_tool_call_id) == ("ask_user", "own")
    assert result.thread.last.metadata["ask_user"]
    done = rxllm.chat(engine, result.thread + "to own").run()
    assert done.halted_reason == "completed"
    assert all(text in done.output_text for text in ("to a/x", "to b/x", "to own"))
    uniform = rxllm.resume(engine, result, results={"own": "to own"}).run()
    assert uniform.output_text == done.output_text


def test_a_chats_own_approval_beside_that_of_an_agent() -> None:
    engine = Engine(model(call("a", "bank"), ToolCall("x", "pay")), tools=[agent("bank", ToolCall("x", "pay")), pay])
    halted = stored(rxllm.chat(engine, "Go").run())
    assert ids(halted) == ["x", "a/x"]
    done = rxllm.resume(engine, halted, approvals=dict.fromkeys(ids(halted), True)).run()
    assert (done.halted_reason, ran) == ("completed", ["paid 5", "paid 5"])


def test_a_tool_that_halts_the_chat_beside_an_open_agent() -> None:
    stop = tool(name="stop", handler=lambda arguments: halt("stopped", 1))
    engine = Engine(model(call("a", "bank"), ToolCall("s", "stop")), tools=[agent("bank", ToolCall("x", "pay")), stop])
    halted = stored(rxllm.chat(engine, "Go").run())
    assert (halted.halted_reason, ids(halted)) == ("stopped", ["a/x"])
    assert rxllm.resume(engine, halted, approvals={"a/x": True}).run().halted_reason == "completed"


# Ids


def test_an_id_with_a_slash_in_it_is_an_id() -> None:
    engine = Engine(
        model(call("a/b", "bank"), ToolCall("c/d", "pay")), tools=[agent("bank", ToolCall("x/y", "pay")), pay]
    )
    halted = stored(rxllm.chat(engine, "Go").run())
    assert ids(halted) == ["c/d", "a/b/x/y"]
    done = rxllm.resume(engine, halted, approvals={"c/d": False, "a/b/x/y": True}).run()
    assert ran == ["paid 5"]
    assert "I have: paid 5" in done.output_text


def test_an_id_of_two_calls_answers_none() -> None:
    engine = Engine(model(call("a", "bank"), ToolCall("a/x", "pay")), tools=[agent("bank", ToolCall("x", "pay")), pay])
    halted = rxllm.chat(engine, "Go").run()
    assert ids(halted) == ["a/x", "a/x"]
    with pytest.raises(ValidationError, match="several pending tool calls"):
        rxllm.resume(engine, halted, approvals={"a/x": True}).run()
    assert ran == []


# Answers to the agent's call itself


def test_the_call_of_the_agent_can_be_answered_or_denied_itself() -> None:
    engine = nested(1, ToolCall("x", "pay"))
    halted = rxllm.chat(engine, "Go").run()
    answered = rxllm.resume(engine, halted, results={"c1": "never mind"}).run()
    assert answered.output_text == "I have: never mind"
    denied = rxllm.resume(engine, halted, approvals={"c1": "not now"}).run()
    assert "not now" in denied.output_text
    with pytest.raises(ValidationError, match="an agent or tool that has already started"):
        rxllm.resume(engine, halted, approvals={"c1": True}).run()
    with pytest.raises(ValidationError, match="an agent or tool that has already started"):
        rxllm.resume(engine, halted, approvals={"c1": True, "c1/x": True}).run()
    assert ran == []
    by_hand = rxllm.chat(engine, halted.thread + tool_result("c1", "by hand")).run()
    assert by_hand.output_text == "I have: by hand"


def test_without_the_agent_there_is_nothing_to_go_on_with() -> None:
    halted = rxllm.chat(nested(1, ToolCall("x", "pay")), "Go").run()
    with pytest.raises(EngineError, match="no agent named 'agent1'"):
        rxllm.resume(model(), halted, approvals={"c1/x": True}).run()


def test_foreign_metadata_is_not_an_agent() -> None:
    asks = rxllm.Message("assistant", tool_calls=(ToolCall("c1", "pay"),), metadata={"agents": {"c1": "mine"}})
    done = rxllm.resume(Fake("Done."), Thread((user("Go"), asks)), approvals={"c1": True}, tools=[pay]).run()
    assert (done.output_text, ran) == ("Done.", ["paid 5"])


# An agent that halts again, fails or stops once it goes on


def test_an_agent_may_halt_again() -> None:
    def ask(request: Any) -> Any:
        paid = sum(message.role == "tool" for message in request.messages)
        return ToolCall(f"x{paid}", "pay", {"amount": paid}) if paid < 3 else answering(request)

    bank = Engine(Fake(ask), tools=[pay]).as_tool(name="bank")
    engine = Engine(model(call("c", "bank")), tools=[bank])
    result = rxllm.chat(engine, "Go").run()
    for i in range(3):
        assert ids(result) == [f"c/x{i}"]
        result = stored(rxllm.resume(engine, stored(result), approvals={f"c/x{i}": True}).run())
    assert result.halted_reason == "completed"
    assert ran == ["paid 0", "paid 1", "paid 2"]


def test_an_agent_may_fail_once_it_goes_on() -> None:
    def ask(request: Any) -> Any:
        if len(request.messages) == 1:
            return ToolCall("x", "pay")
        raise AdapterError("invalid_request", "no more")

    bank = Engine(Fake(ask), tools=[pay]).as_tool(name="bank")
    engine = Engine(model(call("c", "bank")), tools=[bank])
    halted = rxllm.chat(engine, "Go").run()
    done = rxllm.resume(engine, halted, approvals={"c/x": True}).run()
    assert done.halted_reason == "completed"
    assert done.output_text == 'I have: {"error":"AdapterError: no more"}'
    assert ran == ["paid 5"]


def test_a_step_halts_with_its_agents_too() -> None:
    engine = nested(1, ToolCall("x", "choose"), ToolCall("y", "pay"))
    step = rxllm.step(engine, "Go").run()
    assert isinstance(step, StepResult)
    assert step.metadata["halted_reason"] == "ask_user"
    assert step.metadata["pending_tool_call_id"] == "c1/x"
    assert [call.id for call in step.metadata["approval_tool_calls"]] == ["c1/y"]
    assert stored(step)
    done = rxllm.resume(engine, step, approvals={"c1/y": True}, results={"c1/x": "Lima"}).run()
    assert done.halted_reason == "completed"


@pytest.mark.parametrize("reply", [5, None, ["Lima"], {"city": object()}])
def test_a_question_is_answered_by_text_or_a_mapping(reply: Any) -> None:
    engine = nested(1, ToolCall("x", "choose"))
    halted = rxllm.chat(engine, "Go").run()
    with pytest.raises(ValidationError):
        rxllm.resume(engine, halted, results={"c1/x": reply}).run()


def test_a_mapping_answers_a_question_as_json() -> None:
    @tool
    def choose(context: rxllm.ToolContext) -> Any:
        return context.reply or ask_user("Where?", calls_again=True)

    engine = Engine(Fake(ToolCall("x", "choose"), "Done."), tools=[choose])
    halted = rxllm.chat(engine, "Go").run()
    done = rxllm.resume(engine, halted, results={"x/question": {"city": "Lima", "days": 3}}).run()
    assert done.steps[0].tool_results[0].text == '{"city":"Lima","days":3}'


def test_a_question_is_not_approved() -> None:
    engine = nested(1, ToolCall("x", "choose"))
    halted = rxllm.chat(engine, "Go").run()
    with pytest.raises(ValidationError, match="not the id of an unanswered tool call"):
        rxllm.resume(engine, halted, approvals={"c1/x": True}).run()


# Sessions


@depths
def test_a_session_replies_to_the_question_of_an_agent(depth: int) -> None:
    engine = nested(depth, ToolCall("x", "choose"))
    waiting = stored(session.start(engine, "Go").run().session)
    assert (waiting.status, waiting.pending_tool_calls) == ("awaiting_user", ())
    assert waiting.pending_tool_call_id == PATHS[depth] + "x"
    turn = session.reply(engine, waiting, user("Lima")).run()
    assert turn.session.status == "completed"
    assert turn.output_text.endswith("Lima")
    assert [message.role for message in turn.session.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_session_resumes_the_calls_of_agents_and_then_replies() -> None:
    engine = Engine(
        model(call("a", "bank"), call("b", "guide")),
        tools=[agent("bank", ToolCall("x", "pay"), ToolCall("y", "sign")), agent("guide", ToolCall("x", "choose"))],
    )
    waiting = stored(session.start(engine, "Go").run().session)
    assert (waiting.status, [call.id for call in waiting.pending_tool_calls]) == ("awaiting_tools", ["a/y", "a/x"])
    submitted = stored(waiting.submit_tool_result("a/y", "signed"))
    assert (submitted.status, [call.id for call in submitted.pending_tool_calls]) == ("awaiting_tools", ["a/x"])
    asking = stored(session.resume(engine, submitted, approvals={"a/x": True}).run().session)
    assert (asking.status, asking.pending_tool_call_id) == ("awaiting_user", "b/x")
    turn = session.reply(engine, asking, "Lima").run()
    assert turn.output_text == "I have: I have: paid 5, signed, I have: <awaiting user response>, Lima"


def test_a_session_step_by_step() -> None:
    engine = nested(1, ToolCall("x", "pay"))
    waiting = session.step(engine, Session().append_user("Go")).run().session
    assert (waiting.status, [call.id for call in waiting.pending_tool_calls]) == ("awaiting_tools", ["c1/x"])


def test_a_turn_that_is_cut_while_an_agent_runs_leaves_a_lawful_thread() -> None:
    engine = nested(2, ToolCall("x", "look"))
    events = list(session.stream_start(engine, "Go"))
    for cut in range(1, len(events)):
        part = rxllm.Stream.of(session.stream_start(engine, "Go").pipe(rx.take(cut)))
        kept = part.pipe(ops.to_session(Session(), keep_partial=True)).run().session
        assert stored(kept).status in ("idle", "completed"), cut
        assert session.reply(Fake("Yes"), kept, "Hi").run().output_text == "Yes"


def test_a_resumed_turn_that_is_cut_keeps_what_the_agent_has_done() -> None:
    engine = nested(1, ToolCall("x", "pay"))
    waiting = session.start(engine, "Go").run().session

    def is_paid(event: Event) -> bool:
        return isinstance(event, Nested) and isinstance(event.event, StepCompleted)

    events = session.stream_resume(engine, waiting, approvals={"c1/x": True})
    cut = events.pipe(rx.take_while(lambda event: not is_paid(event), inclusive=True))
    kept = stored(cut.pipe(ops.to_session(waiting, keep_partial=True)).run().session)
    assert ran == ["paid 5"]
    done = rxllm.resume(engine, kept.thread).run()
    assert (done.output_text, ran) == ("I have: I have: paid 5", ["paid 5"])


def test_nothing_is_logged(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "rxllm"):
        rxllm.chat(nested(2, ToolCall("x", "pay")), "Go").run()
    assert caplog.records == []


@depths
def test_an_edit_that_does_not_fit_is_named_by_the_id_that_the_caller_knows(depth: int) -> None:
    engine = nested(depth, ToolCall("x", "pay"), ToolCall("y", "sign"))
    halted = rxllm.chat(engine, "Go").run()
    path = PATHS[depth]
    with pytest.raises(ValidationError) as caught:
        rxllm.resume(engine, halted, approvals={path + "x": {"sum": 1}}, results={path + "y": "signed"}).run()
    assert caught.value.errors == ((("approvals", path + "x", "sum"), "is not a parameter"),)
    with pytest.raises(ValidationError) as caught:
        rxllm.resume(engine, halted, approvals={path + "x": True, path + "y": True}).run()
    assert caught.value.errors[0][0] == ("approvals", path + "y")
    assert ran == []


def test_every_question_comes_with_its_choices() -> None:
    """Also one that was asked beside another, or was left open, and after JSON."""

    @tool
    def order() -> Any:
        return ask_user("Which of these?", choices={"small", "large"} - {"large"})

    asking = agent("clerk", call("x", "order"), tools=[order])
    engine = Engine(model(call("a", "clerk"), call("b", "clerk"), call("c", "order")), tools=[asking, order])
    halted = stored_data(rxllm.chat(engine, "Go").run())
    for id in ("a/x", "b/x", "c"):
        assert (halted.pending_tool_call_id, halted.metadata["ask_user_opts"]) == (id, {"choices": ["small"]})
        halted = stored_data(rxllm.resume(engine, halted.thread).run())
        assert (halted.pending_tool_call_id, halted.metadata["ask_user_opts"]) == (id, {"choices": ["small"]})
        halted = stored_data(rxllm.resume(engine, halted.thread, results={id: "small"}).run())
    assert halted.halted_reason == "completed"


def stored_data(result: ChatResult) -> ChatResult:
    return serializer.from_json(serializer.to_json(result))
