from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given

from rxllm import validate
from rxllm.testing import strategies
from rxllm.values import (
    Image,
    ImagePart,
    Message,
    Request,
    TextPart,
    Thread,
    Tool,
    ToolCall,
    ValidationError,
    json_schema,
    system,
    tool,
    tool_result,
    user,
)


def faults(check: Any, value: Any) -> tuple[Any, ...]:
    with pytest.raises(ValidationError) as caught:
        check(value)
    assert (
        caught.value.reason
        == {
            validate.request: "invalid_request",
            validate.message: "invalid_message",
            validate.thread: "invalid_thread",
            validate.tool: "invalid_tool",
        }[check]
    )
    return caught.value.errors


def asking(**fields: Any) -> Request:
    return Request((user("Hi"),), **fields)


@tool
def add(a: int, b: int) -> int:
    return a + b


def test_what_is_right_passes() -> None:
    image = ImagePart(Image.from_url("https://example.org/a.png"))
    call = Message("assistant", tool_calls=(ToolCall("a", "look"),))
    thread = Thread((system("Be brief."), user([TextPart("What is it?"), image]), call, tool_result("a", {"x": 1})))
    full = Request(
        thread.messages,
        tools=(add, Tool("look-up_2", "finds", {})),
        temperature=0,
        max_tokens=1,
        stop=("END",),
        seed=0,
        response_format=json_schema("city", {"type": "object"}),
        structured_finalize=True,
    )
    assert validate.request(full) is None
    assert validate.thread(thread) is None
    assert validate.message(user("")) is None
    assert validate.tool(add) is None


CALL = Message("assistant", tool_calls=(ToolCall("a", "look"), ToolCall("b", "look")))


@pytest.mark.parametrize(
    ("messages", "index"),
    [
        ((tool_result("a", "1"), user("Hi")), 0),
        ((user("Hi"), CALL, tool_result("a", "1"), tool_result("c", "2")), 3),
        ((user("Hi"), tool_result("a", "1"), CALL), 1),
    ],
)
def test_a_result_without_its_call_is_a_fault_with_its_remedy(messages: Any, index: int) -> None:
    fault = ((("messages", index, "tool_call_id"), "result_without_call"),)
    assert faults(validate.thread, Thread(messages)) == fault
    assert faults(validate.request, Request(messages)) == fault
    with pytest.raises(
        ValidationError, match=r"keep the assistant's message that contains the call.*rxllm\.trim_thread"
    ):
        validate.request(Request(messages))


@pytest.mark.parametrize("option", ["previous_response_id", "conversation"])
def test_a_call_may_be_in_the_messages_that_the_server_has(option: str) -> None:
    validate.request(Request((tool_result("a", "1"),), options={option: "resp_1"}))
    assert faults(validate.request, Request((tool_result("a", "1"),), options={option: None})) != ()


def test_an_empty_thread_passes_and_an_empty_request_does_not() -> None:
    validate.thread(Thread())
    assert faults(validate.request, Request()) == ((("messages",), "empty"),)


@pytest.mark.parametrize(
    ("fields", "path", "what"),
    [
        ({"temperature": -0.1}, "temperature", "out_of_range"),
        ({"temperature": 2.1}, "temperature", "out_of_range"),
        ({"temperature": math.nan}, "temperature", "out_of_range"),
        ({"temperature": math.inf}, "temperature", "out_of_range"),
        ({"temperature": "hot"}, "temperature", "wrong_type"),
        ({"temperature": True}, "temperature", "wrong_type"),
        ({"max_tokens": 0}, "max_tokens", "must_be_positive"),
        ({"max_tokens": -5}, "max_tokens", "must_be_positive"),
        ({"max_tokens": 1.5}, "max_tokens", "wrong_type"),
        ({"max_tokens": 10**400}, "max_tokens", "too_large"),
        ({"seed": 2**63}, "seed", "too_large"),
        ({"seed": -(10**400)}, "seed", "too_large"),
        ({"temperature": 10**400}, "temperature", "out_of_range"),
        ({"max_tokens": math.nan}, "max_tokens", "wrong_type"),
        ({"max_tokens": "many"}, "max_tokens", "wrong_type"),
        ({"seed": "lucky"}, "seed", "wrong_type"),
        ({"stop": 3}, "stop", "wrong_type"),
        ({"tools": (Tool("f"), Tool("g"), Tool("f"))}, "tools", "duplicate_name"),
        ({"tools": None}, "tools", "wrong_type"),
        ({"response_format": "json"}, "response_format", "invalid_shape"),
        ({"response_format": 5}, "response_format", "invalid_shape"),
        ({"response_format": {}}, "response_format", "invalid_shape"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_shape"),
        ({"response_format": {"type": "json_schema", "name": 1, "schema": {}}}, "response_format", "invalid_shape"),
        ({"structured_finalize": True}, "structured_finalize", "requires_json_schema"),
        (
            {"structured_finalize": True, "response_format": {"type": "json_object"}},
            "structured_finalize",
            "requires_json_schema",
        ),
    ],
)
def test_a_request_s_fault_is_named(fields: dict[str, Any], path: str, what: str) -> None:
    assert faults(validate.request, asking(**fields)) == (((path,), what),)


@pytest.mark.parametrize("response_format", [None, "text", {"type": "text"}, {"type": "json_object"}])
def test_response_formats_without_a_schema(response_format: Any) -> None:
    validate.request(asking(response_format=response_format))


@pytest.mark.parametrize(
    ("message", "path", "what"),
    [
        (Message("robot"), ("role",), "unknown"),
        (Message(["user"]), ("role",), "unknown"),
        (Message("user", None), ("content",), "invalid_type"),
        (Message("user", 5), ("content",), "invalid_type"),
        (Message("user", {"x": 1}), ("content",), "invalid_type"),
        (Message("user", (TextPart("a"), "b")), ("content", 1), "invalid_part_type"),
        (Message("tool", "42"), ("tool_call_id",), "required"),
        (Message("tool", "42", tool_call_id=""), ("tool_call_id",), "required"),
        (Message("assistant", tool_calls=("a",)), ("tool_calls", 0), "wrong_type"),
        (Message("assistant", tool_calls=None), ("tool_calls",), "wrong_type"),
        ("Hi", (), "wrong_type"),
    ],
)
def test_a_message_s_fault_is_named_wherever_it_is(message: Any, path: tuple[Any, ...], what: str) -> None:
    assert faults(validate.message, message) == ((path, what),)
    if isinstance(message, Message):  # a thread refuses anything else when it is made
        assert faults(validate.thread, Thread((user("Hi"), message))) == ((("messages", 1, *path), what),)
    assert faults(validate.request, Request((user("Hi"), message))) == ((("messages", 1, *path), what),)


@pytest.mark.parametrize(
    ("made", "path", "what"),
    [
        (Tool(""), ("name",), "empty"),
        (Tool(None), ("name",), "empty"),
        (Tool(5), ("name",), "wrong_type"),
        (Tool("auto"), ("name",), "reserved_tool_name"),
        (Tool("none"), ("name",), "reserved_tool_name"),
        (Tool("required"), ("name",), "reserved_tool_name"),
        (Tool("get weather"), ("name",), "invalid_format"),
        (Tool("wétter"), ("name",), "invalid_format"),
        (Tool("f\n"), ("name",), "invalid_format"),
        (Tool("f" * 65), ("name",), "invalid_format"),
        (Tool("f", None), ("description",), "not_a_string"),
        (Tool("f", "", []), ("schema",), "not_a_map"),
        (5, (), "wrong_type"),
    ],
)
def test_a_tool_s_fault_is_named_wherever_it_is(made: Any, path: tuple[Any, ...], what: str) -> None:
    assert faults(validate.tool, made) == ((path, what),)
    assert faults(validate.request, asking(tools=(Tool("g"), made))) == ((("tools", 1, *path), what),)


def test_the_longest_name_passes() -> None:
    validate.tool(Tool("f" * 64))


def test_all_faults_are_named_at_once() -> None:
    wrong = Request((Message("robot", 5),), tools=(Tool(""), Tool("")), temperature=3, max_tokens=0)
    assert faults(validate.request, wrong) == (
        (("messages", 0, "role"), "unknown"),
        (("messages", 0, "content"), "invalid_type"),
        (("tools", 0, "name"), "empty"),
        (("tools", 1, "name"), "empty"),
        (("tools",), "duplicate_name"),
        (("temperature",), "out_of_range"),
        (("max_tokens",), "must_be_positive"),
    )


def test_the_error_s_text_says_where() -> None:
    what = r"messages\.0\.role must be one of system, user, assistant, tool, not 'robot'"
    with pytest.raises(ValidationError, match=what):
        validate.request(Request((Message("robot"),)))


def test_the_error_s_text_says_what_to_write_instead() -> None:
    wrong = Request((user("Hi"), 5), tools=(Tool("auto"),), max_tokens=0, seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValidationError) as caught:
        validate.request(wrong)
    assert caught.value.message == (
        "validation failed: invalid_request (messages.1 must be Message, not 5; "
        "tools.0.name must not be 'auto', 'none' or 'required', which are reserved for tool_choice; "
        "max_tokens must be an integer >= 1, not 0; seed must be int or None, not 1.5)"
    )


@pytest.mark.parametrize("value", [None, 5, "Hi", {}, [], user("Hi"), ToolCall("a", "f")])
def test_anything_else_is_the_wrong_type(value: Any) -> None:
    assert faults(validate.request, value) == (((), "wrong_type"),)


@given(strategies.requests)
def test_any_request_passes_or_is_refused_with_paths(request: Request) -> None:
    try:
        validate.request(request)
    except ValidationError as error:
        refused = error
    else:
        return
    assert refused.errors


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (validate.request, "a Request"),
        (validate.thread, "a Thread"),
        (validate.message, "a Message"),
        (validate.tool, "a Tool"),
        (validate.session, "a Session"),
        (validate.image_request, "an ImageRequest"),
    ],
)
def test_a_value_of_another_class_is_told_which_one(function: Any, expected: str) -> None:
    with pytest.raises(ValidationError, match=f"value must be {expected}, not 5"):
        function(5)


def test_data_are_checked_against_a_schema() -> None:
    schema: dict[str, Any] = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert validate.data({"n": 1}, schema) is None
    with pytest.raises(ValidationError, match='n: "x" is not of type "integer"') as caught:
        validate.data({"n": "x"}, schema)
    assert (caught.value.reason, caught.value.errors) == (
        "invalid_output",
        ((("n",), '"x" is not of type "integer"'),),
    )
    with pytest.raises(ValidationError, match="schema must be a JSON schema") as caught:
        validate.data({}, {"type": "no such type"})
    assert caught.value.reason == "invalid_option"
