"""A tool that asks the user is called again with the answer: beside others, in agents, in another process."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import rxllm
from rxllm import ChatCompleted, Engine, Fake, Nested, ToolCall, ToolContext, serializer, session, web
from rxllm import operators as ops
from rxllm.runtime import ToolRecord
from rxllm.values import ChatResult, Halt

CALL = ToolCall("c1", "book", {"city": "Rome"})


def booking(runs: list[Any]) -> rxllm.Tool:
    """A tool that asks for the class and then for the seat, and counts its runs."""

    @rxllm.tool
    def book(city: str, context: ToolContext) -> str | Halt:
        """Book a flight."""
        runs.append((city, context.reply, context.tool_state))
        if context.reply is None:
            return rxllm.ask_user("Which class?", calls_again=True, tool_state={"step": 1}, choices=["first", "second"])
        if context.tool_state["step"] == 1:
            return rxllm.ask_user("Which seat?", calls_again=True, tool_state={"step": 2, "chosen": context.reply})
        return f"{city}: {context.tool_state['chosen']}, {context.reply}"

    return book


def stored(result: ChatResult) -> ChatResult:
    return serializer.from_json(serializer.to_json(result))


def test_the_answer_calls_the_tool_again_and_the_model_reads_its_result() -> None:
    runs: list[Any] = []
    model, tools = Fake(CALL, "Done."), [booking(runs)]
    halted = rxllm.chat(model, "Book.", tools=tools).run()
    assert (halted.halted_reason, halted.pending_question) == ("ask_user", "Which class?")
    assert halted.metadata["ask_user_opts"] == {"choices": ["first", "second"]}
    halted = rxllm.resume(model, stored(halted), results={"c1/question": "first"}, tools=tools).run()
    assert (halted.pending_question, halted.pending_tool_call_id) == ("Which seat?", "c1/question")
    result = rxllm.resume(model, stored(halted), results={"c1/question": "2A"}, tools=tools).run()
    assert (result.halted_reason, result.output_text) == ("completed", "Done.")
    assert [message.text for message in result.thread if message.role == "tool"] == ["Rome: first, 2A"]
    assert runs == [
        ("Rome", None, None),
        ("Rome", "first", {"step": 1}),
        ("Rome", "2A", {"step": 2, "chosen": "first"}),
    ]
    assert "agents" not in result.thread[1].metadata


def test_a_session_replies_to_the_tool() -> None:
    model, tools = Fake(CALL, "Done."), [booking([])]
    turn = session.start(model, "Book.", tools=tools).run()
    assert (turn.session.status, turn.session.pending_question) == ("awaiting_user", "Which class?")
    turn = session.reply(model, turn, "first", tools=tools).run()
    turn = session.reply(model, turn, "2A", tools=tools).run()
    assert (turn.session.status, turn.output_text) == ("completed", "Done.")


def test_several_tools_of_one_step_may_ask_and_an_answer_to_one_leaves_the_others_open() -> None:
    runs: list[Any] = []

    @rxllm.tool
    def sign(context: ToolContext) -> str | Halt:
        """Sign a form."""
        return context.reply or rxllm.ask_user("Your name?", calls_again=True)

    model, tools = Fake([CALL, ToolCall("c2", "sign", {})], "Done."), [booking(runs), sign]
    halted = rxllm.chat(model, "Book.", tools=tools).run()
    assert halted.pending_tool_call_id == "c1/question"
    halted = rxllm.resume(model, halted, results={"c2/question": "Ada"}, tools=tools).run()
    assert halted.pending_question == "Which class?"
    assert len(runs) == 1, "an open question does not run its tool"
    halted = rxllm.resume(model, stored(halted), results={"c1/question": "first"}, tools=tools).run()
    result = rxllm.resume(model, halted, results={"c1/question": "2A"}, tools=tools).run()
    assert [message.text for message in result.thread if message.role == "tool"] == ["Rome: first, 2A", "Ada"]


def test_a_tool_of_an_agent_may_ask() -> None:
    tools = [booking([])]
    clerk = Engine(Fake(CALL, "Booked.")).as_tool(name="clerk", description="Books.", tools=tools)
    model = Fake(ToolCall("a1", "clerk", {"prompt": "Book."}), "Done.")
    halted = rxllm.chat(model, "Book.", tools=[clerk]).run()
    assert halted.pending_tool_call_id == "a1/c1/question"
    halted = rxllm.resume(model, stored(halted), results={"a1/c1/question": "first"}, tools=[clerk]).run()
    result = rxllm.resume(model, stored(halted), results={"a1/c1/question": "2A"}, tools=[clerk]).run()
    assert result.output_text == "Done."


def test_a_call_that_asks_may_be_denied() -> None:
    runs: list[Any] = []
    model, tools = Fake(CALL, "Well."), [booking(runs)]
    halted = rxllm.chat(model, "Book.", tools=tools).run()
    result = rxllm.resume(model, halted, approvals={"c1": "too dear"}, tools=tools).run()
    assert (result.output_text, len(runs)) == ("Well.", 1)
    assert "too dear" in result.steps[0].tool_results[0].text


def test_a_result_for_the_call_in_place_of_its_question_is_refused_with_the_right_id() -> None:
    tools = [booking([])]
    clerk = Engine(Fake(CALL, "Booked.")).as_tool(name="clerk", description="Books.", tools=tools)
    calls = [CALL, ToolCall("a1", "clerk", {"prompt": "Book."})]
    halted = rxllm.chat(Fake(calls), "Book.", tools=[*tools, clerk]).run()
    for id in ("c1", "a1/c1"):
        with pytest.raises(rxllm.ValidationError, match=rf"question; pass the answer as results=\{{'{id}/question': "):
            rxllm.resume(Fake("?"), stored(halted), results={id: "first"}, tools=[*tools, clerk]).run()


def test_an_approval_is_not_asked_for_again() -> None:
    runs: list[Any] = []
    tool = dataclasses.replace(booking(runs), approval=True)
    model = Fake(CALL, "Done.")
    halted = rxllm.chat(model, "Book.", tools=[tool]).run()
    halted = rxllm.resume(model, halted, approvals={"c1": True}, tools=[tool]).run()
    assert halted.halted_reason == "ask_user"
    halted = rxllm.resume(model, stored(halted), results={"c1/question": "first"}, tools=[tool]).run()
    assert halted.pending_question == "Which seat?"


class Interrupted:
    """A journal of a run that died while the tool ran."""

    def response(self, path: Any, key: str, events: Any) -> Any:
        return events

    def tool(self, path: Any, key: str) -> ToolRecord:
        return ToolRecord(CALL)

    async def begin(self, path: Any, key: str, call: ToolCall) -> None: ...

    async def finish(self, path: Any, key: str, events: Any) -> None: ...


@pytest.mark.parametrize(("approval", "result"), [(True, "Rome: first, 2A"), ({"city": "Oslo"}, "Oslo: first, 2A")])
def test_a_call_that_was_interrupted_after_the_reply_may_be_approved_to_run_again(approval: Any, result: str) -> None:
    runs: list[Any] = []
    model, tools = Fake(CALL, "Done."), [booking(runs)]
    halted = rxllm.chat(model, "Book.", tools=tools).run()
    halted = rxllm.resume(model, halted, results={"c1/question": "first"}, tools=tools).run()
    with pytest.raises(rxllm.ValidationError, match="is a call to an agent or tool that has already started"):
        rxllm.resume(model, halted, approvals={"c1": True}, tools=tools).run()
    events = rxllm.stream_resume(model, halted, results={"c1/question": "2A"}, tools=tools)
    halted = events.pipe(ops.journaled(Interrupted()), ops.to_chat_result()).run()
    assert [call.metadata for call in halted.pending_tool_calls] == [{"interrupted": True}]
    assert len(runs) == 2
    done = rxllm.resume(model, stored(halted), approvals={"c1": approval}, tools=tools).run()
    assert [message.text for message in done.thread if message.role == "tool"] == [result]
    assert len(runs) == 3


def test_the_question_is_the_end_of_the_call_for_now() -> None:
    events = list(rxllm.stream(Fake(CALL), "Book.", tools=[booking([])]))
    nested = [event.event for event in events if isinstance(event, Nested)]
    assert [type(event).__name__ for event in nested] == ["AskUserRequested", "ChatCompleted"]
    assert isinstance(nested[-1], ChatCompleted)
    assert not [event for event in events if isinstance(event, rxllm.ToolExecutionCompleted)]
    assert [serializer.from_json(serializer.to_json(event)) for event in nested] == nested


def test_the_state_of_a_tool_is_in_the_thread_and_not_sent_to_clients() -> None:
    stream = rxllm.stream(Fake(CALL), "Book.", tools=[booking([])])
    assert any("step" in serializer.to_json(event) for event in stream)
    sent = [serializer.to_json(event) for event in stream.pipe(web.for_client())]
    assert any("choices" in text for text in sent)
    assert not any("step" in text.replace("step_", "") for text in sent)


def test_a_tool_that_is_gone_is_missed_before_anything_runs() -> None:
    halted = rxllm.chat(Fake(CALL), "Book.", tools=[booking([])]).run()
    with pytest.raises(rxllm.EngineError, match=r"no tool named 'book'; pass the tool again in tools=\[...\]"):
        rxllm.resume(Fake("?"), halted, results={"c1/question": "first"}).run()
