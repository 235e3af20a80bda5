from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from reactivex import from_iterable

from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.events import ErrorEvent, Event, MessageCompleted, RawChunk, TextDelta, ToolCallCompleted
from rxllm.runtime import Stream
from rxllm.testing.marbles import check
from rxllm.values import Message, Response, Session, StreamError, ToolCall, Usage, ValidationError

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
