"""Agents that say something only in a snapshot of the messages, or that repeat what others have said."""

from __future__ import annotations

from typing import Any

import pytest
from reactivex import from_iterable

import rxllm
from rxllm import ChatCompleted, ErrorEvent, MessageCompleted, RawChunk, Stream, ToolCall, web
from rxllm import operators as ops
from rxllm.values import ProviderPart, ThinkingPart
from rxllm.web import AGUI
from tests.web.ag_ui import again

START = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}
FINISH = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}
HI: dict[str, Any] = {"id": "u1", "role": "user", "content": "Hi"}
HELLO: dict[str, Any] = {"id": "a1", "role": "assistant", "content": "Hello"}


THREAD = (rxllm.user("Hi"),)


def snapshot(*messages: Any) -> dict[str, Any]:
    return {"type": "MESSAGES_SNAPSHOT", "messages": [*messages]}


def text(id: str, *deltas: str, **fields: Any) -> list[dict[str, Any]]:
    contents = [{"type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": delta} for delta in deltas]
    start = {"type": "TEXT_MESSAGE_START", "messageId": id, **fields}
    return [start, *contents, {"type": "TEXT_MESSAGE_END", "messageId": id}]


def asked(id: str, name: str, arguments: Any = '{"x":1}', content: str = "") -> dict[str, Any]:
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": f"m_{id}", "role": "assistant", "content": content, "toolCalls": [call]}


def found(call: str, content: Any = "found") -> dict[str, Any]:
    return {"id": f"r_{call}", "role": "tool", "toolCallId": call, "content": content}


@rxllm.tool
def add(x: int) -> int:
    return x + 1


def events_of(*frames: Any, thread: Any = THREAD) -> list[rxllm.Event]:
    """What the adapter makes of a run, by the rules of events."""
    decoder = AGUI("http://127.0.0.1").decoder(rxllm.Request(tuple(thread), tools=(add,)))
    events = [event for frame in (START, *frames) for event in decoder.feed(web.sse(frame))]
    events += decoder.close()
    list(Stream.of(from_iterable(events)).pipe(ops.verify()))
    return events


def message_of(*frames: Any, thread: Any = THREAD) -> rxllm.Message:
    last = events_of(*frames, FINISH, thread=thread)[-1]
    assert isinstance(last, MessageCompleted)
    return last.message


def chat_of(*frames: Any, start: dict[str, Any] = START) -> rxllm.ChatResult:
    """What a client makes of a run."""
    events = again([start, *frames, FINISH])
    list(Stream.of(from_iterable(events)).pipe(ops.verify()))
    last = events[-1]
    assert isinstance(last, ChatCompleted)
    return last.result


def steps_of(*frames: Any, start: dict[str, Any] = START) -> list[str]:
    """The texts of the steps that a client finds."""
    events = again([start, *frames, FINISH])
    return [event.response.output_text for event in events if isinstance(event, rxllm.StepCompleted)]


def both(*frames: Any) -> str:
    """The text that both readers find."""
    (answer,) = {message_of(*frames).text, chat_of(*frames).output_text}
    return answer


# Texts of others


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool", "activity", "User"])
def test_the_text_of_another_does_not_join_the_answer(role: str) -> None:
    assert both(*text("u1", "ec", "ho", role=role), *text("a1", "Hello", role="assistant")) == "Hello"
    assert both(*text("a1", "Hello", role="assistant"), *text("u1", "echo", role=role)) == "Hello"
    chunk = {"type": "TEXT_MESSAGE_CHUNK", "messageId": "u1", "role": role, "delta": "echo"}
    assert both(chunk, *text("a1", "Hello")) == "Hello"


def test_the_text_of_another_is_a_raw_chunk() -> None:
    events = events_of(*text("u1", "echo", role="user"), *text("a1", "Hello"), FINISH)
    assert [event.data["delta"] for event in events if isinstance(event, RawChunk)] == ["echo"]


@pytest.mark.parametrize("fields", [{}, {"role": None}, {"role": "assistant"}, {"role": "ai"}, {"role": 3}])
def test_a_text_without_a_known_role_is_the_answer(fields: Any) -> None:
    assert both(*text("a1", "Hello", **fields)) == "Hello"


# Snapshots alone


def test_an_answer_that_is_only_in_a_snapshot_is_read() -> None:
    assert both(snapshot(HI, HELLO)) == "Hello"
    assert both(snapshot(HELLO)) == "Hello"
    assert both(snapshot(HI), snapshot(HI, HELLO)) == "Hello"
    assert both(snapshot(HI, {**HELLO, "content": [{"type": "text", "text": "Hel"}, {"text": "lo"}]})) == "Hello"
    assert both(snapshot(HI, {"role": "assistant", "content": "Hello"})) == "Hello"
    assert both(snapshot(HI, HELLO, {**HELLO, "id": "a2"})) == "HelloHello"
    assert both(snapshot({"role": "system", "content": "Be kind."}, HI, HELLO)) == "Hello"


def test_the_snapshot_is_a_raw_chunk_too() -> None:
    events = events_of(snapshot(HI, HELLO), FINISH)
    assert [event.data for event in events if isinstance(event, RawChunk)] == [snapshot(HI, HELLO)]


def test_only_what_follows_the_users_last_message_is_the_answer() -> None:
    before = [HI, {**HELLO, "content": "Old."}, {"id": "u2", "role": "user", "content": "And?"}]
    assert both(snapshot(*before, {**HELLO, "id": "a2", "content": "New."})) == "New."
    assert both(snapshot(*before, {**HELLO, "id": "a2", "content": "Old."})) == "Old."


def test_a_snapshot_that_ends_with_the_user_is_no_answer() -> None:
    assert both(snapshot(HI)) == ""
    assert both(snapshot(HI, HELLO, {"id": "u2", "role": "user", "content": "And?"})) == ""
    assert both(snapshot()) == ""


def test_the_answer_before_an_error_is_kept() -> None:
    events = events_of(snapshot(HI, HELLO), {"type": "RUN_ERROR", "message": "No."})
    assert [event.text for event in events if isinstance(event, rxllm.TextCompleted)] == ["Hello"]
    assert isinstance(events[-1], ErrorEvent)


@pytest.mark.parametrize(
    "odd", [None, 3, "text", [], {}, {"id": 3, "role": "assistant"}, {"role": [1], "toolCalls": [3]}]
)
def test_an_odd_message_takes_no_other_with_it(odd: Any) -> None:
    assert both(snapshot(HI, odd, HELLO)) == "Hello"
    assert both(snapshot(HI, HELLO, odd)) == "Hello"


@pytest.mark.parametrize("messages", [None, 3, {"a": 1}, "text"])
def test_a_snapshot_without_messages_takes_no_text_with_it(messages: Any) -> None:
    assert both(*text("a1", "Hello"), {"type": "MESSAGES_SNAPSHOT", "messages": messages}) == "Hello"


# Snapshots beside deltas


def test_a_snapshot_of_what_was_said_does_not_double_it() -> None:
    said = text("a1", "Hel", "lo")
    for seen in (HELLO, {**HELLO, "id": "other"}, {**HELLO, "content": "Hello\n", "id": "other"}):
        assert both(*said, snapshot(HI, seen)).strip() == "Hello"
        assert both(snapshot(HI, seen), *said).strip() == "Hello"
        assert both(said[0], said[1], snapshot(HI, seen), *said[2:]).strip() == "Hello"
    assert both(*said, snapshot(HI, HELLO), snapshot(HI, HELLO)) == "Hello"


def test_a_message_that_was_said_in_pieces_is_not_doubled() -> None:
    joined = {**HELLO, "id": "other", "content": "I look. Found."}
    assert both(*text("a1", "I look. "), *text("a2", "Found."), snapshot(HI, joined)) == "I look. Found."


def test_a_message_that_was_changed_afterwards_is_not_doubled() -> None:
    assert both(*text("a1", "Helo"), snapshot(HI, HELLO)) == "Helo"


def test_the_rest_of_a_message_is_read_from_the_snapshot() -> None:
    assert both(*text("a1", "Hel"), snapshot(HI, HELLO)) == "Hello"
    assert both(*text("a1", "I look. "), snapshot(HI, {**HELLO, "content": "I look. "}, {**HELLO, "id": "a2"})) == (
        "I look. Hello"
    )


def test_an_answer_that_repeats_a_word_of_another_message_is_read() -> None:
    counted = {**HELLO, "content": "1, 2, 3. "}
    assert both(*text("a1", "1, 2, 3. "), snapshot(HI, counted, {**HELLO, "id": "a2", "content": "3"})) == "1, 2, 3. 3"


def test_the_users_words_do_not_hide_an_answer_of_the_same_words() -> None:
    assert both(*text("u1", "Say Hello.", role="user"), snapshot(HI, HELLO)) == "Hello"


# Reasoning and tools


def test_reasoning_of_a_snapshot_is_thinking() -> None:
    thought = {"id": "t1", "role": "reasoning", "content": "Hm", "encryptedValue": "s"}
    parts = message_of(snapshot(HI, thought, HELLO)).parts
    assert [(part.text, part.signature) for part in parts if isinstance(part, ThinkingPart)] == [("Hm", "s")]
    assert both(snapshot(HI, thought, HELLO)) == "Hello"
    activity = {"id": "x", "role": "activity", "activityType": "PLAN", "content": {"steps": []}}
    assert both(snapshot(HI, activity, HELLO)) == "Hello"


@pytest.mark.parametrize("arguments", ['{"x":1}', {"x": 1}])
def test_a_call_of_our_tool_that_is_only_in_a_snapshot_is_read(arguments: Any) -> None:
    message = message_of(snapshot(HI, asked("c1", "add", arguments, "I add.")))
    assert (message.text, [(c.id, c.name, c.arguments) for c in message.tool_calls]) == (
        "I add.",
        [("c1", "add", {"x": 1})],
    )
    assert not message.tool_calls[0].metadata.get("server")
    chat = chat_of(snapshot(HI, asked("c1", "add", arguments, "I add.")))
    assert [(call.id, call.arguments) for call in chat.pending_tool_calls] == [("c1", {"x": 1})]


def test_the_agents_own_call_and_its_result_are_read() -> None:
    message = message_of(snapshot(HI, asked("s1", "search", content="I look. "), found("s1"), HELLO))
    assert message.text == "I look. Hello"
    assert [call.metadata.get("server") for call in message.tool_calls] == [True]
    assert [p.data for p in message.parts if isinstance(p, ProviderPart)] == [{"id": "s1", "content": "found"}]


def test_calls_and_results_that_were_said_are_not_doubled() -> None:
    said = [
        {"type": "TOOL_CALL_START", "toolCallId": "s1", "toolCallName": "search"},
        {"type": "TOOL_CALL_END", "toolCallId": "s1"},
        {"type": "TOOL_CALL_RESULT", "messageId": "r_s1", "toolCallId": "s1", "content": "found"},
    ]
    message = message_of(*said, snapshot(HI, asked("s1", "search"), found("s1"), HELLO))
    assert (message.text, len(message.tool_calls)) == ("Hello", 1)
    assert len([part for part in message.parts if isinstance(part, ProviderPart)]) == 1
    assert steps_of(*said, snapshot(HI, asked("s1", "search"), found("s1"), HELLO)) == ["", "Hello"]


CALLED = rxllm.Message("assistant", "I add.", tool_calls=(ToolCall("c1", "add", {"x": 1}),))
CONTINUED = [rxllm.user("Hi"), CALLED, rxllm.Message("tool", "2", tool_call_id="c1")]


def test_what_the_agent_was_sent_is_not_its_answer() -> None:
    sent = [HI, asked("c1", "add", content="I add."), found("c1", "2")]
    for history in (sent, [{**message, "id": f"message_{i}"} for i, message in enumerate(sent)]):
        assert message_of(snapshot(*history, HELLO), thread=CONTINUED).text == "Hello"
        assert message_of(snapshot(*history), *text("a9", "Two."), thread=CONTINUED).text == "Two."
        assert message_of(snapshot(*history), thread=CONTINUED).parts == ()


def test_without_the_request_what_follows_the_last_result_is_the_answer() -> None:
    sent = [HI, asked("c1", "add", content="I add."), found("c1", "2")]
    assert steps_of(snapshot(*sent, HELLO)) == ["Hello"]
    assert steps_of(snapshot(*sent), *text("a9", "Two.")) == ["Two."]


def test_a_run_that_repeats_its_input_says_what_it_was_sent() -> None:
    start = {**START, "input": {"messages": [HI]}}
    frames = snapshot(HI, asked("s1", "search", content="I look. "), found("s1"), HELLO)
    assert steps_of(frames, start=start) == ["I look. ", "Hello"]


def test_messages_of_agents_inside_are_not_the_answer() -> None:
    assert both(snapshot(HI, {**HELLO, "id": "x", "content": "No.", "subagentRunId": "a1"}, HELLO)) == "Hello"
    inner = [{**frame, "subagentRunId": "a1"} for frame in text("b1", "Hello")]
    started = {"type": "SUBAGENT_STARTED", "subagentRunId": "a1", "name": "agent"}
    assert message_of(started, *inner, snapshot(HI, HELLO)).text == "Hello"


@pytest.mark.sockets
def test_a_call_of_an_agent_that_sends_snapshots_has_an_answer() -> None:
    from rxllm.testing.loopback import Loopback, Reply

    frames = [START, snapshot(HI, HELLO), FINISH]
    with Loopback(Reply([*map(web.sse, frames)], headers={"Content-Type": "text/event-stream"})) as server:
        response = rxllm.generate(rxllm.Engine(AGUI(server.url), retry=False), "Hi").run()
    assert (response.output_text, response.finish_reason) == ("Hello", "stop")
