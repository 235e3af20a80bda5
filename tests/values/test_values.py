from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given

import rxllm.values as values
from rxllm.testing import strategies
from rxllm.values import (
    Call,
    ChatResult,
    Image,
    ImageUsage,
    Message,
    Request,
    Response,
    StepResult,
    StreamError,
    TextPart,
    ThinkingPart,
    Thread,
    Tool,
    ToolCall,
    Usage,
    ValidationError,
    assistant,
    json_schema,
    system,
    tool_result,
    user,
)


def test_the_public_names_are_sorted_and_exist() -> None:
    assert values.__all__ == sorted(values.__all__)
    assert all(hasattr(values, name) for name in values.__all__)


@given(strategies.values)
def test_values_are_immutable(value: Any) -> None:
    before = repr(value)
    for name in (*(spec.name for spec in dataclasses.fields(value)), "whatever"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            setattr(value, name, None)
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            delattr(value, name)
    assert repr(value) == before


@given(strategies.values)
def test_values_survive_pickling_and_copying(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value


def test_lists_become_tuples() -> None:
    assert Thread([user("Hi")]).messages == (user("Hi"),)
    assert Message("user", [TextPart("Hi")]).content == (TextPart("Hi"),)
    request = Request([user("Hi")], tools=[Tool("f")], stop=["END"])
    assert (request.messages, request.tools, request.stop) == ((user("Hi"),), (Tool("f"),), ("END",))
    assert dataclasses.replace(request, stop=["A"]).stop == ("A",)


def test_values_are_equal_by_class_and_fields() -> None:
    assert user("Hi") == Message("user", "Hi")
    assert user("Hi") != assistant("Hi")
    assert TextPart("Hi") != ThinkingPart("Hi")
    assert user("Hi") != "Hi"
    assert len({ImageUsage(1), ImageUsage(1), ImageUsage(2)}) == 2


# Messages


def test_builders_say_who_speaks() -> None:
    assert [build("Hi").role for build in (system, user, assistant)] == ["system", "user", "assistant"]
    assert user([TextPart("a"), TextPart("b")]).content == (TextPart("a"), TextPart("b"))
    assert tool_result("a", {"x": 1}) == Message("tool", {"x": 1}, tool_call_id="a")


def test_the_text_of_a_message_is_that_of_its_text_parts() -> None:
    assert user("Hi").text == "Hi"
    assert Message("assistant", (ThinkingPart("hm"), TextPart("a"), TextPart("b"))).text == "ab"
    assert tool_result("a", {"x": 1}).text == ""


def test_text_is_one_part() -> None:
    assert user("Hi").parts == (TextPart("Hi"),)
    assert user("").parts == ()
    assert user([TextPart("Hi")]).parts == (TextPart("Hi"),)
    assert tool_result("a", {"x": 1}).parts == ()


# Threads


def test_a_thread_grows_by_adding() -> None:
    thread = Thread() + system("Be brief.")
    longer = thread + (message for message in (user("Hi"), assistant("Hello")))
    assert (len(thread), len(longer)) == (1, 3)
    assert longer + Thread((user("Bye"),)) == longer + user("Bye")
    assert thread.add_user("Hi").add_assistant("Hello") == longer
    assert Thread().add_system("Be brief.") == thread


def test_a_thread_is_a_sequence_of_messages() -> None:
    thread = Thread((system("Be brief."), user("Hi"), assistant("Hello")), {"id": 1})
    assert [message.role for message in thread] == ["system", "user", "assistant"]
    assert (thread[0], thread[-1]) == (system("Be brief."), assistant("Hello"))
    assert thread[1:] == Thread((user("Hi"), assistant("Hello")), {"id": 1})
    assert user("Hi") in thread
    with pytest.raises(IndexError):
        thread[3]


def test_the_last_message_of_an_empty_thread_is_none() -> None:
    assert Thread().last is None
    assert Thread((user("Hi"),)).last == user("Hi")


# Usage


def test_usage_adds_up() -> None:
    a = Usage(1, 2, total_cost=0.5, extra={"searches": 1, "by": {"x": 1}})
    b = Usage(3, None, cached_input_tokens=4, extra={"searches": 2, "by": {"x": 1, "y": 2}, "tier": "slow"})
    assert a + b == Usage(
        4,
        2,
        cached_input_tokens=4,
        total_cost=0.5,
        extra={"searches": 3, "by": {"x": 2, "y": 2}, "tier": "slow"},
    )
    assert sum([a, b], Usage()) == a + b
    assert (Usage(1, 2) + Usage(3, 4, total_tokens=9)).total_tokens == 12  # one of them has not stated it


def test_what_nobody_said_stays_unsaid() -> None:
    assert (Usage() + Usage()).input_tokens is None


def test_the_total_is_the_provider_s_or_the_sum() -> None:
    assert Usage(1, 2).total == 3
    assert Usage(1, 2, total_tokens=7).total == 7
    assert Usage(total_tokens=0).total == 0
    assert Usage().total == 0


def test_usage_adds_to_nothing_else() -> None:
    with pytest.raises(TypeError):
        Usage() + 1


# What is shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (user("Hi"), "Message('user', 'Hi')"),
        (Message("assistant", "", tool_calls=(ToolCall("a", "add"),)), "Message('assistant', '', calls=['add'])"),
        (Thread((user("Hi"),)), "Thread(1 messages, last=Message('user', 'Hi'))"),
        (Thread(), "Thread(0 messages)"),
        (ToolCall("a", "add", {"x": 1, "y": "b"}), "add(x=1, y='b')"),
        (ToolCall("a", "add", {}, "{x", {"error": "invalid JSON"}), "add('{x')"),
        (Tool("add", "Adds.", handler=print), "Tool('add', 'Adds.')"),
        (Usage(1, 2), "Usage(input_tokens=1, output_tokens=2)"),
        (
            Response(assistant("2, 3"), "2, 3", finish_reason="stop", usage=Usage(4, 7)),
            "Response('2, 3', stop, 11 tokens)",
        ),
        (Image.from_binary(b"\0" * 999, "image/png"), "Image(binary, image/png, 999 bytes)"),
    ],
)
def test_reprs_are_short(value: Any, shown: str) -> None:
    assert repr(value) == shown


def test_long_answers_are_cut_in_reprs() -> None:
    response = Response(output_text="word " * 1000)
    result = ChatResult(Thread(), response, (StepResult(Thread(), response),))
    assert all(len(repr(each)) < 160 for each in (response, *result.steps, result))
    assert "…" in repr(response)


def test_errors_are_seen_in_reprs() -> None:
    error = StreamError("truncated")
    assert "truncated" in repr(Response(error=error))
    assert "truncated" in repr(ChatResult(Thread(), error=error))


def test_notebooks_get_markdown() -> None:
    message = Message("assistant", "Hi", tool_calls=(ToolCall("a", "add", {"x": 1}),))
    response = Response(message, "Hi", finish_reason="stop", usage=Usage(1, 2), error=StreamError("truncated"))
    step = StepResult(Thread((message,)), response, (tool_result("a", "2"),))
    chat = ChatResult(Thread((message,)), response, (step,), "completed")
    assert message._repr_markdown_() == "**assistant**\n\nHi\n\n`add(x=1)`"
    assert response._repr_markdown_() == "Hi\n\n**StreamError**: stream error: truncated\n\n*stop, 3 tokens*"
    assert step._repr_markdown_().endswith("**tool**\n\n`2`")
    assert chat._repr_markdown_().endswith("*completed, 1 steps, 0 tokens*")
    assert (Thread((user("a"), user("b"))))._repr_markdown_() == "**user**\n\na\n\n**user**\n\nb"


def test_a_call_never_shows_its_key() -> None:
    call = Call(api_key="sk-secret")
    assert "secret" not in repr(call) + str(call)


# Results


def test_a_result_raises_the_error_that_it_holds() -> None:
    error = StreamError("truncated")
    for result in (Response(error=error), ChatResult(Thread(), error=error)):
        with pytest.raises(StreamError) as caught:
            result.raise_for_error()
        assert caught.value is error
    for fine in (Response(), ChatResult(Thread())):
        assert fine.raise_for_error() is fine


def test_a_chat_s_text_is_that_of_its_last_response() -> None:
    assert ChatResult(Thread(), Response(output_text="Hi")).output_text == "Hi"
    assert ChatResult(Thread()).output_text == ""


def test_a_json_schema_is_strict_unless_told_otherwise() -> None:
    assert json_schema("city", {}) == {"type": "json_schema", "name": "city", "schema": {}, "strict": True}
    assert json_schema("city", {}, strict=False)["strict"] is False


# Images


def test_images_become_bytes_base64_and_data_uris(tmp_path: Any) -> None:
    path = tmp_path / "dot.png"
    path.write_bytes(b"\x89PNG")
    for image in (
        Image.from_binary(b"\x89PNG", "image/png"),
        Image.from_base64("iVBORw==", "image/png"),
        Image.from_file(path),
    ):
        assert image.to_binary() == b"\x89PNG"
        assert image.to_base64() == "iVBORw=="
        assert image.to_data_uri() == "data:image/png;base64,iVBORw=="


@pytest.mark.parametrize(
    ("image", "what"),
    [
        (Image.from_url("https://example.org/a.png"), "remote_source"),
        (Image.from_base64("!", "image/png"), "invalid_base64"),
    ],
)
def test_images_without_bytes_say_so(image: Image, what: str) -> None:
    with pytest.raises(ValidationError) as caught:
        image.to_binary()
    assert (caught.value.reason, caught.value.errors) == ("invalid_image_request", ((("source",), what),))


def test_a_data_uri_needs_a_type() -> None:
    with pytest.raises(ValidationError, match="missing_mime_type"):
        Image("binary", b"x").to_data_uri()


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(OSError, match="nowhere"):
        Image.from_file("nowhere.png").to_binary()
