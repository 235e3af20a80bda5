"""Results of a stream: responses, step and chat results, text, parsed answers and the states of the fold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from operator import methodcaller
from typing import Any, Literal, Never, NewType, cast

import pydantic
import pytest
import reactivex
from reactivex import from_iterable

from rxllm import Fake, ToolCall, Usage, ValidationError, json_schema, stream, stream_generate, tool
from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    StepCompleted,
    TextDelta,
    ThinkingDelta,
    ToolCallCompleted,
    UsageUpdated,
)
from rxllm.runtime import Stream
from rxllm.testing import assert_operator, events
from rxllm.testing.event_checks import played
from rxllm.testing.marbles import check
from rxllm.values import ChatResult, Message, Response, Session, StepResult, StreamError, Thread, assistant, user
from tests.operators.scripts import said, through

# to_response


to_session = partial(ops.to_session, Session())
STOP = MessageCompleted(Message("assistant"), "stop")
VALUES: dict[str, Any] = {"H": TextDelta("H"), "i": TextDelta("i"), "s": STOP}


def hi(**given: Any) -> Response[Any]:
    return Response(Message("assistant", "Hi"), "Hi", finish_reason="stop", **given)


def responses(*events: Event) -> Stream[Event]:
    return Stream.of(from_iterable(events))


def test_one_response_comes_at_the_end() -> None:
    check(
        ops.to_response(),
        "-H-i-s-|",
        "^------!",
        "-------(r|)",
        r=hi(),
        **VALUES,
    )


def test_an_empty_stream_is_an_empty_response() -> None:
    check(
        ops.to_response(),
        "---|",
        "^--!",
        "---(r|)",
        r=StreamCollector().to_response(),
    )


def test_the_text_is_parsed() -> None:
    check(
        ops.to_response(str.upper),
        "-H-i-s-|",
        "^------!",
        "-------(r|)",
        r=hi(parsed="HI"),
        **VALUES,
    )


def test_a_failed_parse_is_an_error_that_keeps_the_text() -> None:
    with pytest.raises(ValidationError) as caught:
        responses(TextDelta("two"), STOP).pipe(ops.to_response(lambda text: int(text))).run()
    assert caught.value.reason == "invalid_output"
    assert caught.value.metadata == {"text": "two", "finish_reason": "stop", "usage": Usage()}
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_that_parse_raises_itself_passes() -> None:
    def refuse(text: str) -> None:
        raise ValidationError("invalid_output", "too short")

    with pytest.raises(ValidationError, match="too short"):
        responses(TextDelta("two"), STOP).pipe(ops.to_response(refuse)).run()


def test_a_failed_response_is_a_result_and_is_not_parsed() -> None:
    error = StreamError("truncated")
    response = responses(TextDelta("4"), ErrorEvent(error)).pipe(ops.to_response(int)).run()
    assert (response.finish_reason, response.error, response.output_text, response.parsed) == (
        "error",
        error,
        "4",
        None,
    )


def test_a_response_with_calls_is_not_parsed() -> None:
    response = responses(ToolCallCompleted("c1", "add", {}, "{}"), STOP).pipe(ops.to_response(int)).run()
    assert (response.tool_calls, response.parsed) == ((ToolCall("c1", "add", {}, "{}"),), None)


def test_a_raw_usage_with_unknown_names_is_the_streams_error() -> None:
    with pytest.raises(TypeError):
        responses(RawChunk("usage", {"nonsense": 1}), STOP).pipe(ops.to_response()).run()


def test_a_subscriber_that_raises_gets_it_once() -> None:
    errors: list[Exception] = []
    failure = ValueError("no")

    def refuse(response: Any) -> None:
        raise failure

    responses(STOP).pipe(ops.to_response()).subscribe(refuse, errors.append)
    assert errors == [failure]


@pytest.mark.parametrize(("parse", "text", "parsed"), [(list[int], "[1, 2]", [1, 2]), (dict, '{"a": 1}', {"a": 1})])
def test_a_type_reads_the_text_as_json(parse: Any, text: str, parsed: Any) -> None:
    assert responses(TextDelta(text), STOP).pipe(ops.to_response(parse)).run().parsed == parsed
    with pytest.raises(ValidationError) as caught:
        responses(TextDelta("two"), STOP).pipe(ops.to_response(parse)).run()
    assert (caught.value.reason, caught.value.metadata["text"]) == ("invalid_output", "two")


@pytest.mark.parametrize("parse", [None, "text", {"type": "text"}])
def test_just_text_is_not_parsed(parse: Any) -> None:
    assert responses(TextDelta("Hi"), STOP).pipe(ops.to_response(parse)).run() == hi()


@pytest.mark.parametrize("operator", [ops.to_response, ops.to_step_result, ops.to_chat_result, to_session])
@pytest.mark.parametrize("parse", [3, "x", {"a": 1}])
def test_what_is_no_way_to_read_the_text_is_refused_at_once(operator: Any, parse: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        operator(parse=parse)
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", ("parse",))


# to_step_result


THREAD = Thread((user("Hi"),))
STEP = StepResult(
    THREAD + assistant("Hi"), Response(assistant("Hi"), "Hi", finish_reason="stop"), done=True, metadata={}
)


def test_a_completed_step_is_the_result() -> None:
    kept = StepResult(THREAD, Response(), metadata={"mode": "manual"})
    check(
        ops.to_step_result(),
        "-H-c-|",
        "^----!",
        "-----(s|)",
        H=TextDelta("Hi"),
        c=StepCompleted(kept),
        s=kept,
    )


def test_of_several_steps_the_last_one_counts() -> None:
    first, last = StepResult(THREAD, Response()), STEP
    check(
        ops.to_step_result(),
        "-a-b-|",
        "^----!",
        "-----(s|)",
        a=StepCompleted(first),
        b=StepCompleted(last),
        s=last,
    )


def test_without_a_completed_step_it_is_what_was_folded_onto_the_thread() -> None:
    check(
        ops.to_step_result(THREAD),
        "-H-c-|",
        "^----!",
        "-----(s|)",
        H=TextDelta("Hi"),
        c=STOP,
        s=STEP,
    )


def test_a_step_that_was_cut_off_needs_no_thread() -> None:
    step = Stream.of(from_iterable([TextDelta("Hi"), STOP])).pipe(ops.to_step_result()).run()
    assert (step.response, step.thread) == (STEP.response, Thread((assistant("Hi"),)))


def test_without_an_event_or_a_thread_it_says_what_is_missing() -> None:
    with pytest.raises(StreamError, match=r"no event has arrived.*write to_step_result\(thread\)"):
        reactivex.empty().pipe(ops.to_step_result()).run()


# to_chat_result


ASKED = user("A story!")


def test_the_chats_own_result_is_the_result() -> None:
    result = ChatResult(THREAD, halted_reason="completed")
    check(
        ops.to_chat_result(),
        "-H-c-|",
        "^----!",
        "-----(r|)",
        H=TextDelta("Hi"),
        c=ChatCompleted(result),
        r=result,
    )


def test_a_chat_that_was_cut_off_is_cancelled() -> None:
    step = StepResult(THREAD + assistant("a"), Response(assistant("a"), "a", usage=Usage(1, 1)))
    events = [StepCompleted(step), TextDelta("b"), UsageUpdated(Usage(2, 0))]
    result = Stream.of(from_iterable(events)).pipe(ops.to_chat_result(THREAD)).run()
    assert (result.halted_reason, result.steps, result.thread) == ("cancelled", (step,), step.thread)
    assert (result.final_response, result.usage) == (step.response, Usage(3, 1))


def test_a_chat_that_failed_before_its_end_says_so() -> None:
    error = StreamError("truncated")
    result = Stream.of(from_iterable([TextDelta("a"), ErrorEvent(error)])).pipe(ops.to_chat_result(THREAD)).run()
    assert (result.halted_reason, result.error, result.output_text) == ("error", error, "a")


def test_a_chat_that_was_cut_off_needs_no_thread() -> None:
    """A client has none: it has the events that its server sends."""
    error = StreamError("cancelled")
    result = Stream.of(from_iterable([TextDelta("a"), ErrorEvent(error)])).pipe(ops.to_chat_result()).run()
    assert (result.output_text, result.halted_reason, result.error, result.thread) == ("a", "error", error, Thread())


def test_without_an_event_or_a_thread_it_says_what_is_missing_of_to_chat_result() -> None:
    with pytest.raises(StreamError, match=r"no event has arrived.*write to_chat_result\(thread\)") as caught:
        reactivex.empty().pipe(ops.to_chat_result()).run()
    assert caught.value.reason == "truncated"


@pytest.mark.parametrize(
    ("events", "texts", "partial"),
    [
        ([], ["Hi"], None),
        ([MessageStarted(Message("assistant")), TextDelta(" ")], ["Hi"], None),
        ([TextDelta("Once "), TextDelta("upon")], ["Hi", "Once upon"], "cancelled"),
        ([TextDelta("Once "), ErrorEvent(StreamError("truncated"))], ["Hi", "Once "], "error"),
    ],
)
def test_what_was_cut_off_may_be_kept(events: list[Event], texts: list[str], partial: str | None) -> None:
    result = Stream.of(from_iterable(events)).pipe(ops.to_chat_result(THREAD, keep_partial=True)).run()
    assert [message.text for message in result.thread] == texts
    assert result.thread[-1].metadata.get("partial") == partial
    assert Stream.of(from_iterable(events)).pipe(ops.to_chat_result(THREAD)).run().thread == THREAD


def test_the_partial_text_of_a_chat_that_was_left_is_kept() -> None:
    saved: list[ChatResult] = []
    story = stream(Fake(["one ", "two ", ("delay", 60), "three"]), THREAD)
    keep = ops.finally_result(lambda result, _: saved.append(result), ops.to_chat_result(THREAD, keep_partial=True))
    story.pipe(keep, ops.text()).take(2).run()
    assert [message.text for message in saved[0].thread] == ["Hi", "one two "]


def test_keep_partial_is_a_boolean() -> None:
    with pytest.raises(ValidationError, match="keep_partial must be True or False"):
        ops.to_chat_result(keep_partial=cast(Any, "yes"))


@pytest.mark.parametrize("begin", [ASKED.text, ASKED, [ASKED], {"role": "user", "content": "A story!"}])
def test_the_thread_is_whatever_a_conversation_is(begin: Any) -> None:
    fold = ops.to_chat_result(begin, keep_partial=True)
    stopped = stream(Fake(["Once ", "upon"]), begin).take(2).pipe(fold).run()
    assert [message.text for message in stopped.thread] == ["A story!", "Once "]


# to_text


ANSWER = Response(assistant("42"), "42", finish_reason="stop")


def test_the_text_comes_at_the_end() -> None:
    check(
        ops.to_text(),
        "-h-H-i-s-|",
        "^--------!",
        "---------(t|)",
        h=ThinkingDelta("hm"),
        H=TextDelta("H"),
        i=TextDelta("i"),
        s=STOP,
        t="Hi",
    )


def test_a_chats_text_is_its_final_response() -> None:
    step = StepResult(Thread(), ANSWER)
    result = ChatResult(Thread(), ANSWER, (step,), "completed")
    events = [TextDelta("let me see"), StepCompleted(step), ChatCompleted(result)]
    assert Stream.of(from_iterable(events)).pipe(ops.to_text()).run() == "42"


@pytest.mark.parametrize(
    "last", [ErrorEvent(StreamError("truncated")), ChatCompleted(ChatResult(Thread(), error=StreamError("truncated")))]
)
def test_a_failed_stream_gives_its_error_instead(last: ErrorEvent | ChatCompleted) -> None:
    with pytest.raises(StreamError):
        Stream.of(from_iterable([TextDelta("Hi"), last])).pipe(ops.to_text()).run()


# scan_collect


HELLO = [TextDelta("H"), TextDelta("i")]


def folded(count: int) -> StreamCollector:
    return reduce(StreamCollector.apply_event, HELLO[:count], StreamCollector(THREAD))


def test_each_event_gives_the_state_after_it() -> None:
    check(
        ops.scan_collect(THREAD),
        "-H-i-|",
        "^----!",
        "-1-2-|",
        **{"H": HELLO[0], "i": HELLO[1], "1": folded(1), "2": folded(2)},
    )


def test_a_raw_usage_with_unknown_names_is_the_streams_error_of_scan_collect() -> None:
    from reactivex import of

    errors: list[Exception] = []
    of(RawChunk("usage", {"nonsense": 1})).pipe(ops.scan_collect()).subscribe(on_error=errors.append)
    assert [type(error) for error in errors] == [TypeError]


def test_states_that_are_kept_stay_as_they_were() -> None:
    from reactivex import from_iterable

    states = list(Stream.of(from_iterable(HELLO).pipe(ops.scan_collect())))
    assert [state.current_text for state in states] == ["H", "Hi"]


# parsed


@dataclass
class City:
    name: str
    people: int = 0


class Town(pydantic.BaseModel):
    name: str


class Other:
    """What no JSON is read as."""


def test_the_value_comes_at_the_end() -> None:
    check(
        ops.parsed(City),
        "-a-b-|",
        "^----!",
        "-----(1|)",
        **{"a": TextDelta('{"name": "Li'), "b": TextDelta('ma", "people": 3}'), "1": City("Lima", 3)},
    )


def test_it_keeps_the_rules_of_operators() -> None:
    assert_operator(lambda: ops.parsed(list[int]), events=said(["[1", ", 2]"]))


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (City, '```json\n{"name": "Lima"}\n```', City("Lima")),
        (Town, '{"name": "Ulm"}', Town(name="Ulm")),
        (list[Town], '[{"name": "Ulm"}]', [Town(name="Ulm")]),
        (dict[str, Town | None], '{"a": {"name": "Ulm"}, "b": null}', {"a": Town(name="Ulm"), "b": None}),
        (pydantic.TypeAdapter(list[Town]).validate_json, '[{"name": "Ulm"}]', [Town(name="Ulm")]),
        (partial(int, base=16), "ff", 255),
        (list[City], '```\n[{"name": "Lima"}]\n```', [City("Lima")]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (int | str, '"a"', "a"),
        (bool, "false", False),
        (Any, "[null]", [None]),
        (json_schema("n", {"type": "array"}), "[1]", [1]),
        ({"type": "json_object"}, '{"a": 1}', {"a": 1}),
        (lambda text: text.upper(), "hi", "HI"),
        (str.upper, "hi", "HI"),
        (len, "hi", 2),
        (methodcaller("upper"), "hi", "HI"),
        (NewType("Metres", int), "3", 3),
        (Literal["a"], '"a"', "a"),
    ],
)
def test_what_it_may_be(wanted: Any, text: str, value: Any) -> None:
    assert through(ops.parsed(wanted), said([text])) == [value]


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (City, '{"name": 1}'),
        (Town, "{}"),
        (list[Town], "[{}]"),
        (list[Other], "[{}]"),
        (list[int], "[1"),
        (int, "many"),
        (bool, "0"),
        (int, ""),
    ],
)
def test_what_does_not_fit_keeps_the_text(wanted: Any, text: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        through(ops.parsed(wanted), events(text, usage=Usage(3, 1)))
    assert refusal.value.reason == "invalid_output"
    assert refusal.value.metadata == {"text": text, "finish_reason": "stop", "usage": Usage(3, 1)}


def test_an_exception_of_the_function_says_so() -> None:
    with pytest.raises(ValidationError, match="ZeroDivisionError") as refusal:
        through(ops.parsed(lambda text: 1 / 0), said(["[1]"]))
    assert refusal.value.metadata["text"] == "[1]"


def test_a_response_that_asks_for_tools_is_no_answer() -> None:
    with pytest.raises(ValidationError, match="calls tools instead") as refusal:
        through(ops.parsed(int), events("42", ToolCall("c1", "add", {})))
    assert refusal.value.metadata["text"] == "42"


def test_a_stream_that_failed_ends_with_its_error() -> None:
    error = StreamError("truncated")
    check(ops.parsed(int), "-a-e-|", "^----!", "-----X", a=TextDelta("4"), e=ErrorEvent(error), X=error)


def test_of_a_chat_it_is_the_final_answer() -> None:
    add = tool(name="add", handler=lambda arguments: 42)
    fake = Fake(["Let me see", ToolCall("c1", "add", {})], ["4", "2"])
    assert played(stream(fake, "Hi", tools=[add]).pipe(ops.parsed(int))) == [42]
    stopped = Fake(["Let me see", ToolCall("c1", "add", {})])
    with pytest.raises(ValidationError, match="calls tools instead"):
        played(stream(stopped, "Hi", tools=[add], max_turns=1).pipe(ops.parsed(int)))


def test_it_runs_on_a_stream() -> None:
    assert stream_generate(Fake('{"name": "Lima"}'), "Where?").pipe(ops.parsed(City)).run() == City("Lima")


@pytest.mark.parametrize("wanted", ["text", "json", {"type": "text"}, 3, [int], Never])
def test_a_type_that_is_none_is_refused(wanted: Any) -> None:
    with pytest.raises(ValidationError, match="type") as refusal:
        ops.parsed(wanted)
    assert refusal.value.reason == "invalid_option"
