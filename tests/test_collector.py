from __future__ import annotations

import pickle
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm.collector import AWAITING_USER, StreamCollector, answer
from rxllm.events import (
    AskUserRequested,
    ChatCompleted,
    Custom,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    Nested,
    PartAdded,
    RawChunk,
    SourceAdded,
    Steered,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolProgress,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.testing import strategies
from rxllm.values import (
    ChatResult,
    FilePart,
    Message,
    ProviderPart,
    Response,
    SourcePart,
    StepResult,
    StreamError,
    TextPart,
    ThinkingPart,
    Thread,
    ToolCall,
    ToolCallPart,
    Usage,
    assistant,
    tool_result,
    user,
)

THREAD = Thread((user("Hi"),))
ERROR = StreamError("truncated")


def fold(*events: Event, thread: Thread | None = None) -> StreamCollector:
    return reduce(StreamCollector.apply_event, events, StreamCollector(thread))


def done(reason: Any = "stop", **metadata: Any) -> MessageCompleted:
    return MessageCompleted(Message("assistant"), reason, reason, metadata)


def call(id: str, name: str = "add", **metadata: Any) -> list[Event]:
    return [
        ToolCallStarted(id, name),
        ToolCallDelta(id, '{"a":'),
        ToolCallDelta(id, "1}"),
        ToolCallCompleted(id, name, {"a": 1}, '{"a":1}', metadata),
    ]


def step(text: str = "Hello", usage: Usage = Usage(), thread: Thread = THREAD) -> StepResult:  # noqa: B008
    message = assistant(text)
    return StepResult(thread + message, Response(message, text, finish_reason="stop", usage=usage), done=True)


# Each row of the fold


def test_a_collector_begins_empty() -> None:
    state = StreamCollector()
    assert (state.thread, state.current_text, state.current_tool_calls, state.tool_call_order) == (None, "", {}, ())
    assert (state.last_message, state.steps, state.tool_results, state.halt) == (None, (), (), None)
    assert (state.chat_result, state.usage, state.finish_reason, state.error) == (None, Usage(), None, None)
    assert (state.done, state.metadata) == (False, {})
    assert StreamCollector(THREAD).thread == THREAD


def test_message_started_says_id_and_model_and_no_text() -> None:
    response = fold(MessageStarted(Message("assistant", metadata={"id": "r1", "model": "m"}))).to_response()
    assert (response.output_text, response.id, response.model) == ("", "r1", "m")
    assert response.message == Message("assistant", metadata={"id": "r1", "model": "m"})


def test_text_deltas_are_appended() -> None:
    assert fold(TextDelta("hel"), TextDelta("lo")).current_text == "hello"


def test_completed_text_replaces_its_deltas() -> None:
    assert fold(TextDelta("hel"), TextCompleted("Hello.")).current_text == "Hello."


def test_a_delta_after_completed_text_opens_a_new_block() -> None:
    state = fold(TextDelta("a"), TextCompleted("a"), TextDelta("b"))
    assert state.current_text == "ab"
    assert state.message.content == (TextPart("a"), TextPart("b"))


def test_blocks_with_ids_never_overwrite_one_another() -> None:
    state = fold(
        TextDelta("a", "1"),
        TextDelta("b", "2"),
        TextDelta("A", "1"),
        TextCompleted("bB", "2"),
        TextCompleted("aA", "1"),
    )
    assert state.message.content == (TextPart("aA"), TextPart("bB"))
    assert state.to_response().output_text == "aAbB"


def test_a_completion_without_an_id_closes_the_block_that_is_open() -> None:
    assert fold(TextDelta("a", "1"), TextCompleted("b"), TextDelta("c")).message.content == (
        TextPart("b"),
        TextPart("c"),
    )


def test_text_and_thinking_blocks_of_one_id_are_two() -> None:
    state = fold(
        ThinkingDelta("hm", "0"), TextDelta("Hi", "0"), ThinkingCompleted("hm", id="0"), TextCompleted("Hi", "0")
    )
    assert state.message.content == (ThinkingPart("hm"), TextPart("Hi"))


def test_thinking_keeps_its_signature_and_provider_data() -> None:
    state = fold(ThinkingDelta("h"), ThinkingCompleted("hm", "sig", {"encrypted": "x"}), TextDelta("Hi"))
    assert state.message.content == (ThinkingPart("hm", "sig", {"encrypted": "x"}), TextPart("Hi"))
    assert state.current_text == "Hi"


def test_thinking_without_text_is_kept_for_its_signature() -> None:
    assert fold(ThinkingCompleted("", "sig")).message.content == (ThinkingPart("", "sig"),)


def test_a_started_call_is_there_with_its_name() -> None:
    state = fold(ToolCallStarted("a", "add", {"server": True}))
    assert state.current_tool_calls == {"a": ToolCall("a", "add", {}, "", {"server": True})}


def test_call_deltas_are_appended_and_never_parsed() -> None:
    state = fold(ToolCallStarted("a", "add"), ToolCallDelta("a", '{"x"'), ToolCallDelta("a", ":1}"))
    assert state.current_tool_calls == {"a": ToolCall("a", "add", {}, '{"x":1}')}


def test_a_delta_before_its_start_makes_a_nameless_call() -> None:
    state = fold(ToolCallDelta("a", "{"))
    assert state.current_tool_calls == {"a": ToolCall("a", "", {}, "{")}
    assert fold(ToolCallDelta("a", "{"), ToolCallStarted("a", "add")).current_tool_calls["a"].name == "add"


def test_the_first_start_of_a_call_counts() -> None:
    assert fold(ToolCallStarted("a", "add"), ToolCallStarted("a", "sub")).current_tool_calls["a"].name == "add"


def test_a_completed_call_replaces_what_was_there() -> None:
    state = fold(*call("a"), ToolCallDelta("a", "late"), ToolCallStarted("a", "late"))
    assert state.current_tool_calls == {"a": ToolCall("a", "add", {"a": 1}, '{"a":1}')}


def test_calls_are_in_the_order_of_their_first_appearance() -> None:
    state = fold(ToolCallStarted("b", "f"), ToolCallDelta("a", "{}"), *call("a"), *call("b"))
    assert state.tool_call_order == ("b", "a")
    assert [each.id for each in state.to_response().tool_calls] == ["b", "a"]


def test_message_completed_brings_finish_reason_metadata_and_last_message() -> None:
    state = fold(TextDelta("Hi"), MessageCompleted(assistant("Hi"), "length", "max_tokens", {"a": 1}))
    assert (state.finish_reason, state.raw_finish_reason, state.metadata) == ("length", "max_tokens", {"a": 1})
    assert state.last_message == assistant("Hi")


def test_message_completed_without_a_finish_reason_keeps_the_old_one() -> None:
    state = fold(done("length", a=1, b=1), done(None, b=2))
    assert (state.finish_reason, state.raw_finish_reason, state.metadata) == ("length", "length", {"a": 1, "b": 2})


def test_raw_usage_replaces_the_usage() -> None:
    state = fold(RawChunk("usage", {"input_tokens": 1, "output_tokens": 2}), RawChunk("usage", {"input_tokens": 5}))
    assert state.usage == Usage(input_tokens=5)


def test_a_part_folds_in_its_earlier_form_too_also_in_an_earlier_state() -> None:
    part = ProviderPart("p", {})
    pickled = StreamCollector(log=[RawChunk("x", part)], length=1)
    for state in (fold(PartAdded(part)), fold(RawChunk("x", part)), pickled, fold(*pickled.to_events())):
        assert state.message.parts == (part,)


def test_raw_usage_with_an_unknown_name_raises() -> None:
    with pytest.raises(TypeError, match="prompt_tokens"):
        fold(RawChunk("usage", {"prompt_tokens": 1}))


def test_other_raw_chunks_change_nothing() -> None:
    state = fold(TextDelta("a"))
    assert state.apply_event(RawChunk("sse", {"prompt_tokens": 1})) == state
    assert state.apply_event(RawChunk("usage", None)) == state


def test_usage_updates_are_cumulative() -> None:
    assert fold(UsageUpdated(Usage(1, 1)), UsageUpdated(Usage(1, 9))).to_response().usage == Usage(1, 9)


def test_usage_after_the_message_is_still_read() -> None:
    assert fold(done(), UsageUpdated(Usage(3))).to_response().usage == Usage(3)


def test_usage_survives_an_error() -> None:
    assert fold(UsageUpdated(Usage(3)), ErrorEvent(ERROR)).to_response().usage == Usage(3)


def test_an_error_is_a_response_with_what_had_come() -> None:
    response = fold(TextDelta("Hel"), ErrorEvent(ERROR)).to_response()
    assert (response.output_text, response.finish_reason, response.error) == ("Hel", "error", ERROR)
    with pytest.raises(StreamError):
        response.raise_for_error()


def test_an_error_is_not_forgotten_when_the_adapter_goes_on() -> None:
    response = fold(ErrorEvent(ERROR), TextDelta("Hi"), *call("a"), done("stop")).to_response()
    assert (response.finish_reason, response.error, response.output_text) == ("error", ERROR, "Hi")


def test_sources_and_files_are_parts_in_their_place() -> None:
    state = fold(TextDelta("a"), SourceAdded({"url": "u"}), TextDelta("b"), FileAdded({"data": b"x"}))
    assert state.message.content == (TextPart("ab"), SourcePart({"url": "u"}), FilePart({"data": b"x"}))


def test_a_call_between_texts_marks_its_place() -> None:
    state = fold(TextDelta("a"), TextCompleted("a"), *call("c"), TextDelta("b"), TextCompleted("b"), done())
    assert state.message.content == (TextPart("a"), ToolCallPart("c"), TextPart("b"))
    assert state.message.tool_calls == (ToolCall("c", "add", {"a": 1}, '{"a":1}'),)


def test_text_and_then_calls_are_plain_text() -> None:
    assert fold(TextDelta("a"), *call("c"), *call("d"), done()).message.content == "a"
    assert fold(*call("c"), done()).message.content == ""
    assert fold(done()).message == Message("assistant")


def test_empty_text_is_no_part() -> None:
    assert fold(TextDelta(""), TextCompleted(""), ThinkingCompleted("hm")).message.content == (ThinkingPart("hm"),)


def test_tool_results_are_tool_messages() -> None:
    state = fold(ToolResultEncoded("a", "1"), ToolResultEncoded("b", "2"))
    assert state.tool_results == (tool_result("a", "1"), tool_result("b", "2"))


def test_a_halt_is_kept_with_its_message() -> None:
    halt = ToolHalt("a", "enough", 42, "forty-two")
    state = fold(halt, thread=THREAD)
    assert (state.halt, state.tool_results) == (halt, (tool_result("a", "forty-two"),))
    assert state.to_step_result().metadata == {
        "halted_reason": "enough",
        "halt_tool_call_id": "a",
        "halt_result": 42,
    }
    assert state.to_step_result().done


def test_a_halt_without_content_prints_its_result() -> None:
    assert fold(ToolHalt("a", "enough", 42)).tool_results == (tool_result("a", "42"),)


def test_a_tool_error_halt_has_no_result() -> None:
    metadata = fold(ToolHalt("a", "tool_error", "boom", "boom"), thread=THREAD).to_step_result().metadata
    assert metadata == {"halted_reason": "tool_error", "halt_tool_call_id": "a"}


def test_a_question_waits_for_the_user() -> None:
    state = fold(AskUserRequested("a", "ask", "Which?", {"choices": [1, 2]}), thread=THREAD)
    assert state.tool_results == (tool_result("a", AWAITING_USER),)
    assert state.to_step_result().metadata == {
        "halted_reason": "ask_user",
        "pending_tool_call_id": "a",
        "pending_question": "Which?",
        "ask_user_opts": {"choices": [1, 2]},
    }


@pytest.mark.parametrize("second", [ToolHalt("b", "other"), AskUserRequested("b", "ask", "Which?")])
@pytest.mark.parametrize("first", [ToolHalt("a", "enough"), AskUserRequested("a", "ask", "Why?")])
def test_the_first_halt_wins_and_every_tool_message_is_kept(first: Any, second: Any) -> None:
    state = fold(first, second, ToolResultEncoded("c", "1"))
    assert state.halt == first
    assert [message.tool_call_id for message in state.tool_results] == ["a", "b", "c"]


def test_chat_completed_is_the_result() -> None:
    result = ChatResult(THREAD, halted_reason="completed")
    state = fold(TextDelta("a"), ChatCompleted(result))
    assert (state.chat_result, state.done) == (result, True)
    assert state.to_chat_result() == result


@pytest.mark.parametrize(
    "event",
    [
        ToolExecutionCompleted("a", "add", 1),
        Nested(("a",), ToolProgress("b", "add", 1)),
        ToolProgress("a", "add", 1),
        ToolApprovalRequested("a", "add", {}),
        Custom("mine", 1),
    ],
)
def test_what_only_informs_changes_nothing(event: Any) -> None:
    state = fold(TextDelta("a"), *call("c"))
    assert state.apply_event(event) is state


def test_a_tool_counts_only_while_it_runs() -> None:
    state = fold(TextDelta("a"), *call("c"))
    runs = state.apply_event(ToolExecutionStarted("c", "add", {}))
    assert runs != state
    assert runs.apply_event(ToolExecutionCompleted("c", "add", 1)) == state


# Steps


def test_step_completed_appends_the_step_and_clears_its_state() -> None:
    first = step()
    state = fold(
        TextDelta("Hello"),
        *call("c"),
        UsageUpdated(Usage(1)),
        ToolHalt("c", "enough"),
        done("stop", trace="t"),
        StepCompleted(first),
        thread=THREAD,
    )
    assert (state.steps, state.thread) == ((first,), first.thread)
    assert (state.current_text, state.current_tool_calls, state.tool_call_order) == ("", {}, ())
    assert (state.tool_results, state.halt, state.last_message) == ((), None, None)
    assert (state.finish_reason, state.raw_finish_reason, state.usage) == (None, None, Usage())
    assert state.metadata == {"trace": "t"}


def test_an_error_outlives_its_step() -> None:
    state = fold(ErrorEvent(ERROR), StepCompleted(step()), thread=THREAD)
    assert state.error == ERROR
    assert state.to_chat_result().halted_reason == "error"


def test_a_finish_reason_of_error_is_a_typed_error_too() -> None:
    response = fold(TextDelta("H"), MessageCompleted(Message("assistant", "H"), "error", "odd")).to_response()
    assert (response.finish_reason, response.raw_finish_reason) == ("error", "odd")
    assert response.error == StreamError("adapter_error", "the answer ended with odd")
    told = fold(ErrorEvent(ERROR), MessageCompleted(Message("assistant"), "error")).to_response()
    assert told.error == ERROR


def test_right_after_a_step_the_projections_are_that_step() -> None:
    state = fold(TextDelta("other"), StepCompleted(step()))
    assert state.to_step_result() == step()
    assert state.to_response() == step().response
    assert state.apply_event(Custom("x")).to_step_result() == step()


def test_once_something_is_folded_the_projections_are_the_new_step() -> None:
    state = fold(StepCompleted(step()), TextDelta("more"), done())
    assert state.to_response().output_text == "more"
    assert state.to_step_result().thread == step().thread + assistant("more")


def test_a_step_result_holds_the_thread_with_the_answer_and_the_tool_results() -> None:
    result = fold(
        TextDelta("a"), *call("c"), done("tool_calls"), ToolResultEncoded("c", "2"), thread=THREAD
    ).to_step_result()
    said = Message("assistant", "a", tool_calls=(ToolCall("c", "add", {"a": 1}, '{"a":1}'),))
    assert result.thread == THREAD + said + tool_result("c", "2")
    assert result.tool_results == (tool_result("c", "2"),)
    assert not result.done


def test_tool_results_of_a_step_are_in_the_order_of_its_calls() -> None:
    encoded = [ToolResultEncoded("b", "2"), ToolHalt("a", "enough", 1), ToolResultEncoded("stray", "3")]
    state = fold(*call("a"), *call("b"), done(), *encoded, thread=THREAD)
    assert [message.tool_call_id for message in state.tool_results] == ["b", "a", "stray"]
    result = state.to_step_result()
    assert [message.tool_call_id for message in result.tool_results] == ["a", "b", "stray"]
    assert result.thread.messages[-3:] == result.tool_results


@pytest.mark.parametrize(
    ("reason", "is_done"),
    [
        ("stop", True),
        ("length", True),
        ("content_filter", True),
        ("error", True),
        ("tool_calls", False),
        ("other", True),
        (None, False),
    ],
)
def test_a_step_is_done_by_its_finish_reason(reason: Any, is_done: bool) -> None:
    assert fold(TextDelta("a"), done(reason), thread=THREAD).to_step_result().done is is_done


def test_a_restart_voids_the_step() -> None:
    void = [TextDelta("a"), *call("c"), UsageUpdated(Usage(1)), ErrorEvent(ERROR), done("stop", a=1)]
    restart = StepRestarted("timeout", 2)
    rest = [TextDelta("b"), done("stop", b=1)]
    state = fold(StepCompleted(step()), *void, restart, *rest, thread=THREAD)
    assert state == fold(StepCompleted(step()), *rest, thread=THREAD)
    assert (state.error, state.metadata, state.steps) == (None, {"b": 1}, (step(),))


@given(strategies.event_lists, strategies.lawful_events)
def test_nothing_of_a_restarted_step_is_left(void: list[Event], rest: list[Event]) -> None:
    void = [event for event in void if not isinstance(event, StepCompleted | ChatCompleted | Steered)]  # not its own
    assert fold(*void, StepRestarted("timeout", 2), *rest, thread=THREAD) == fold(*rest, thread=THREAD)


def test_a_restarted_step_keeps_the_correction_that_it_answers() -> None:
    before = [StepCompleted(step()), Steered(Message("user", "Stop"))]
    restarted = fold(*before, TextDelta("void"), StepRestarted("timeout", 2), thread=THREAD)
    assert restarted.thread == step().thread + "Stop"
    assert Steered(Message("user", "Stop")) in restarted.to_events()


# What a chat is without its end


def test_a_chat_that_was_left_is_cancelled() -> None:
    state = fold(StepCompleted(step(usage=Usage(1, 2))), TextDelta("more"), UsageUpdated(Usage(1)), thread=THREAD)
    result = state.to_chat_result()
    assert (result.halted_reason, result.error) == ("cancelled", None)
    assert (result.final_response, result.steps) == (step(usage=Usage(1, 2)).response, (step(usage=Usage(1, 2)),))
    assert (result.thread, result.usage) == (step().thread, Usage(2, 2))


def test_a_chat_left_in_its_first_step_has_that_response() -> None:
    result = fold(TextDelta("a"), thread=THREAD).to_chat_result()
    assert (result.output_text, result.steps, result.thread) == ("a", (), THREAD)


def test_a_chat_that_broke_has_its_error() -> None:
    result = fold(TextDelta("a"), ErrorEvent(ERROR), thread=THREAD).to_chat_result()
    assert (result.halted_reason, result.error) == ("error", ERROR)


def test_steps_and_chats_need_a_thread_or_an_event() -> None:
    for project in (StreamCollector.to_step_result, StreamCollector.to_chat_result):
        assert project(fold(TextDelta("a"))).thread in (Thread(), Thread((assistant("a"),)))
        with pytest.raises(StreamError, match="no event has arrived"):
            project(StreamCollector())


# The finish reason, and which calls count


@pytest.mark.parametrize(
    ("told", "with_calls", "without"),
    [
        (None, "tool_calls", None),
        ("stop", "tool_calls", "stop"),
        ("other", "tool_calls", "other"),
        ("tool_calls", "tool_calls", "tool_calls"),
        ("length", "length", "length"),
        ("content_filter", "content_filter", "content_filter"),
        ("error", "error", "error"),
    ],
)
def test_the_finish_reason_is_derived(told: Any, with_calls: Any, without: Any) -> None:
    assert fold(*call("c"), done(told)).to_response().finish_reason == with_calls
    assert fold(TextDelta("a"), done(told)).to_response().finish_reason == without


def test_the_provider_s_own_finish_reason_is_kept_beside_it() -> None:
    response = fold(*call("c"), MessageCompleted(Message("assistant"), "stop", "STOP")).to_response()
    assert (response.finish_reason, response.raw_finish_reason) == ("tool_calls", "STOP")


@pytest.mark.parametrize("metadata", [{"server": True}, {"error": "incomplete"}])
def test_server_calls_and_incomplete_calls_are_not_ours_to_answer(metadata: dict[str, Any]) -> None:
    response = fold(TextDelta("a"), *call("c", **metadata), done("stop")).to_response()
    assert (response.tool_calls, response.finish_reason) == ((), "stop")
    assert [each.id for each in response.message.tool_calls] == ["c"]


def test_arguments_that_do_not_parse_are_data() -> None:
    response = fold(ToolCallCompleted("c", "add", {}, "{a", {"error": "invalid JSON"}), done()).to_response()
    assert response.tool_calls == (ToolCall("c", "add", {}, "{a", {"error": "invalid JSON"}),)


def test_calls_that_are_still_open_are_not_in_the_message() -> None:
    state = fold(TextDelta("a"), ToolCallStarted("c", "add"), ToolCallDelta("c", "{"))
    assert (state.message, state.to_response().tool_calls) == (assistant("a"), ())


@pytest.mark.parametrize("reason", ["length", "content_filter", "error"])
def test_calls_of_a_cut_answer_stay_out_of_the_thread(reason: Any) -> None:
    result = fold(TextDelta("a"), *call("c"), done(reason), thread=THREAD).to_step_result()
    assert result.thread == THREAD + assistant("a")
    assert [each.id for each in result.response.tool_calls] == ["c"]
    assert answer(fold(*call("c"), done(reason)).to_response()) == ()


def test_server_calls_stay_in_the_thread_where_ours_may_not() -> None:
    events = [TextDelta("a"), TextCompleted("a"), *call("s", server=True), *call("c"), TextDelta("b"), done("length")]
    (said,) = answer(fold(*events).to_response())
    assert [each.id for each in said.tool_calls] == ["s"]
    assert said.content == (TextPart("a"), ToolCallPart("s"), TextPart("b"))


def test_incomplete_calls_stay_out_of_the_thread() -> None:
    (said,) = answer(fold(*call("a"), *call("b", error="incomplete"), done()).to_response())
    assert [each.id for each in said.tool_calls] == ["a"]


def test_an_answer_of_nothing_adds_nothing() -> None:
    assert answer(fold(done()).to_response()) == ()
    assert answer(Response()) == ()


# Laws


@given(strategies.event_lists, st.sampled_from([None, THREAD]))
def test_any_events_in_any_order_are_borne(events: list[Event], thread: Thread | None) -> None:
    state = fold(*events, thread=thread)
    assert isinstance(state.to_response(), Response)
    if state.thread is not None or state.steps:
        assert isinstance(state.to_step_result(), StepResult)
        assert isinstance(state.to_chat_result(), ChatResult)


@given(strategies.event_lists)
def test_old_states_keep_what_they_said(events: list[Event]) -> None:
    states = [StreamCollector(THREAD)]
    said: list[Any] = [states[0].to_response()]
    for event in events:
        states.append(states[-1].apply_event(event))
        said.append(states[-1].to_response())
    assert [state.to_response() for state in states] == said
    assert states[-1] == fold(*events, thread=THREAD)


@given(strategies.event_lists, strategies.event_lists, strategies.event_lists)
def test_two_futures_of_one_state_do_not_disturb_each_other(
    past: list[Event], one: list[Event], other: list[Event]
) -> None:
    fork = fold(*past, thread=THREAD)
    first = reduce(StreamCollector.apply_event, one, fork)
    second = reduce(StreamCollector.apply_event, other, fork)
    assert fork == fold(*past, thread=THREAD)
    assert first == fold(*past, *one, thread=THREAD)
    assert second == fold(*past, *other, thread=THREAD)


def test_successive_states_share_what_was_said() -> None:
    states = [StreamCollector()]
    for i in range(1000):
        states.append(states[-1].apply_event(TextDelta(str(i % 10))))
    assert all(state.log is states[0].log for state in states)
    assert [len(state.current_text) for state in states[::100]] == list(range(0, 1001, 100))


@given(strategies.event_lists, strategies.event_lists, st.booleans())
def test_deltas_may_be_folded_together(past: list[Event], events: list[Event], forked: bool) -> None:
    before = fold(*past, thread=THREAD)
    if forked:
        before.apply_event(TextDelta("of another future"))
    deltas = [event for event in events if isinstance(event, TextDelta | ThinkingDelta | ToolCallDelta)]
    said = before.to_response()
    assert before.apply_deltas(deltas) == reduce(StreamCollector.apply_event, deltas, before)
    assert before.to_response() == said


@given(strategies.lawful_events)
def test_dropping_deltas_changes_no_result(events: list[Event]) -> None:
    kept = [event for event in events if not isinstance(event, TextDelta | ThinkingDelta | ToolCallDelta)]
    assert fold(*kept, thread=THREAD).to_response() == fold(*events, thread=THREAD).to_response()
    assert fold(*kept, thread=THREAD).to_step_result() == fold(*events, thread=THREAD).to_step_result()


@given(strategies.lawful_events)
def test_the_text_is_the_joined_deltas(events: list[Event]) -> None:
    deltas = "".join(event.delta for event in events if isinstance(event, TextDelta))
    assert fold(*events).to_response().output_text == deltas == fold(*events).current_text


@given(strategies.event_lists)
def test_a_state_survives_pickling(events: list[Event]) -> None:
    state = fold(*events, thread=THREAD)
    restored = pickle.loads(pickle.dumps(state))
    assert restored == state
    assert restored.apply_event(TextDelta("x")) == state.apply_event(TextDelta("x"))


def test_a_state_shows_and_pickles_its_own_text_alone() -> None:
    state = fold(TextDelta("mine"))
    before = pickle.dumps(state)
    state.apply_event(TextDelta("secret"))
    assert pickle.dumps(state) == before
    assert repr(state) == "StreamCollector('mine', None, 0 steps)"
    assert state == fold(TextDelta("mine"))
    assert state != fold(TextDelta("other"))


def test_states_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        StreamCollector().thread = THREAD


def test_states_that_are_equal_do_not_differ() -> None:
    one, same, another = fold(TextDelta("a")), fold(TextDelta("a")), fold(TextDelta("b"))
    assert (one == same, one != same) == (True, False)
    assert (one == another, one != another) == (False, True)
