from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
from dataclasses_json import DataClassJsonMixin
from hypothesis import given
from hypothesis import strategies as st

from rxllm.events import (
    EVENT_TAGS,
    Custom,
    ErrorEvent,
    Nested,
    PartAdded,
    RawChunk,
    TextDelta,
    ToolCallCompleted,
    ToolExecutionCompleted,
    ToolProgress,
    UsageUpdated,
)
from rxllm.serializer import from_data, from_json, to_data, to_json
from rxllm.testing import strategies
from rxllm.values import (
    AdapterError,
    ChatResult,
    Image,
    ImagePart,
    ImageRequest,
    LLMError,
    Message,
    ProviderPart,
    Request,
    Response,
    Session,
    StreamError,
    TextPart,
    Thread,
    Tool,
    ToolCall,
    Usage,
    ValidationError,
    halt,
    tool,
    user,
)


def faults(text: str, cls: Any = None) -> tuple[Any, ...]:
    with pytest.raises(ValidationError) as caught:
        from_json(text, cls)
    assert caught.value.reason == "invalid_request"
    return caught.value.errors


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same classes all the way: ``True == 1`` and ``(1,)`` read back as ``[1]`` would not do."""
    return a == b and repr(a) == repr(b)


@given(strategies.values)
def test_every_value_comes_back_equal(value: Any) -> None:
    assert same(from_json(to_json(value)), value)
    assert from_json(to_json(value), type(value)) == value


@given(strategies.values)
def test_the_methods_of_dataclasses_json_write_the_same_fields(value: Any) -> None:
    assert {"$": type(value).__name__, **value.to_dict(), "v": 1} == to_data(value)
    assert same(type(value).from_dict(value.to_dict()), value)
    assert same(type(value).from_json(value.to_json()), value)


@dataclass
class Ticket(DataClassJsonMixin):
    """A dataclass of a user's own, with a value inside."""

    thread: Thread


def test_a_value_in_another_dataclass_is_written_as_it_is_alone() -> None:
    asked = Message("assistant", tool_calls=(ToolCall("a", "f", {"place": (1, 2)}),))
    assert Ticket(Thread((asked,))).to_dict() == {"thread": Thread((asked,)).to_dict()}


@given(strategies.errors)
def test_every_error_comes_back_equal(error: LLMError) -> None:
    assert from_json(to_json(error)) == error
    assert str(from_json(to_json(error), LLMError)) == str(error)


@given(strategies.events)
def test_every_event_comes_back_equal(event: Any) -> None:
    assert same(from_json(to_json(event)), event)
    assert from_json(to_json(event), type(event)) == event


tags = st.sampled_from([*EVENT_TAGS, "Message", "Thread", "Response", "StreamError", "tuple", "map", "bytes", "Nobody"])
names = st.sampled_from(["role", "content", "messages", "id", "name", "items", "reason", "error", "thread", "v"])
scalars = st.none() | st.integers(0, 2) | st.sampled_from(["user", "timeout", "AA=="])


def tagged(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    known = st.sampled_from(["$", "type"])
    objects = st.builds(lambda key, tag, more: {**more, key: tag}, known, tags, st.dictionaries(names, inner))
    return objects | st.lists(inner, max_size=3)


@given(st.recursive(scalars, tagged, max_leaves=8))
def test_any_json_is_read_or_refused_with_a_path(data: Any) -> None:
    try:
        value = from_json(json.dumps(data))
    except ValidationError as error:
        refused = error
    else:
        assert from_json(to_json(value)) == value
        return
    assert refused.errors


@given(strategies.event_lists)
def test_a_list_is_an_array_of_root_objects(events: list[Any]) -> None:
    assert from_json(to_json(events)) == events
    assert all(each["v"] == 1 for each in json.loads(to_json(events)))


def test_the_text_is_what_a_person_would_write() -> None:
    assert to_json(user("Hi")) == '{"$": "Message", "role": "user", "content": "Hi", "v": 1}'
    assert to_json(TextDelta("Hé")) == '{"type": "text_delta", "delta": "Hé", "v": 1}'
    assert to_json(ErrorEvent(StreamError("truncated"))) == (
        '{"type": "error", "error": {"$": "StreamError", "reason": "truncated", "message": "stream error: truncated"}, '
        '"v": 1}'
    )


def test_only_the_root_carries_the_version() -> None:
    assert to_json(Thread((user("Hi"),))).count('"v"') == 1


def test_text_without_a_tag_is_read_as_the_type_given() -> None:
    assert from_json('{"role": "user", "content": "Hi"}', Message) == user("Hi")
    assert from_json('{"delta": "Hi"}', TextDelta) == TextDelta("Hi")
    assert from_json('{"reason": "timeout"}', StreamError) == StreamError("timeout")
    assert from_json(b'{"text": "Hi"}', TextPart) == TextPart("Hi")


def test_values_inside_text_without_tags_are_read_as_their_fields_say() -> None:
    text = '{"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "name": "f"}]}], "tools": [{"name": "f"}]}'
    asked = Message("assistant", tool_calls=(ToolCall("a", "f"),))
    assert from_json(text, Request) == Request((asked,), tools=(Tool("f"),))


def test_an_array_is_read_as_a_list_of_the_type_given() -> None:
    assert from_json('[{"role": "user", "content": "Hi"}]', list[Message]) == [user("Hi")]
    assert faults('[{"role": "user"}, 1]', list[Message]) == (((1, "data"), "malformed_struct"),)


def test_a_base_class_admits_its_subclasses() -> None:
    assert from_json(to_json(AdapterError("timeout")), LLMError) == AdapterError("timeout")


@pytest.mark.parametrize("text", ["", "{", '{"a": NaN}', "[Infinity]", "{'a': 1}", "[" * 100_000])
def test_malformed_json(text: str) -> None:
    assert faults(text) == ((("json",), "malformed"),)


@pytest.mark.parametrize("text", ["1", "null", '"Hi"', '{"role": "user"}'])
def test_without_a_tag_and_a_type_nothing_says_what_it_is(text: str) -> None:
    assert faults(text) == ((("format",), "missing_type_tag"),)


def test_a_base_class_does_not_say_what_it_is_either() -> None:
    assert faults('{"reason": "timeout"}', LLMError) == ((("format",), "missing_type_tag"),)


@pytest.mark.parametrize("text", ['{"$": "Nobody"}', '{"type": "nothing"}', '{"$": 5}'])
def test_an_unknown_tag_at_the_root(text: str) -> None:
    assert faults(text) == ((("format",), "unknown_type_tag"),)


def test_a_type_that_is_no_value() -> None:
    assert faults("{}", dict) == ((("format",), "unknown_type_tag"),)


def test_a_root_that_is_no_object() -> None:
    assert faults("[]", Message) == ((("data",), "malformed_struct"),)


def test_a_mismatch_names_both_classes() -> None:
    with pytest.raises(ValidationError, match="expected Thread, found Message") as caught:
        from_json(to_json(user("Hi")), Thread)
    assert caught.value.errors == ((("format",), "type_mismatch"),)
    for event in (Custom("x"), TextDelta("x")):
        with pytest.raises(ValidationError, match=f"expected Thread, found {type(event).__name__}"):
            from_json(to_json(event), Thread)
    with pytest.raises(ValidationError, match="expected TextDelta, found Custom"):
        from_json(to_json(Custom("x")), TextDelta)
    with pytest.raises(ValidationError, match="expected TextDelta, found Message"):
        from_json(to_json(user("Hi")), TextDelta)


def test_a_parameter_of_a_generic_class_is_not_looked_at() -> None:
    assert from_json(to_json(Response(parsed=1)), Response[int]) == Response(parsed=1)


def test_a_version_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValidationError, match="version 2, but this version of rxllm reads only version 1"):
        from_json('{"$": "Usage", "v": 2}')
    assert faults('{"$": "Usage", "v": "1"}') == ((("v",), "unknown_version"),)


def test_an_unknown_class_inside_is_refused() -> None:
    newer = '{"$": "Message", "role": "user", "content": [{"$": "SmellPart", "of": "tea"}]}'
    with pytest.raises(ValidationError, match="SmellPart") as caught:
        from_json(newer, Message)
    assert caught.value.errors == ((("content", 0), "unknown_type_tag"),)
    assert faults('{"type": "custom", "name": "x", "data": {"a": [{"$": 5}]}}') == (
        (("data", "a", 0), "unknown_type_tag"),
    )


@pytest.mark.parametrize("tag", ["tuple", "map", "float", "bytes"])
def test_a_tag_of_its_own_without_what_belongs_to_it_is_refused(tag: str) -> None:
    assert faults(f'{{"type": "custom", "name": "x", "data": {{"$": "{tag}"}}}}') == ((("data",), "malformed_struct"),)


@pytest.mark.parametrize("depth", [800, 5_000, 50_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a": ', "}"), ('{"$": "tuple", "items": [', "]}")])
def test_data_that_is_nested_too_deeply_is_refused_with_its_path(depth: int, opening: str, closing: str) -> None:
    text = '{"type": "custom", "name": "x", "data": ' + opening * depth + "1" + closing * depth + "}"
    ((path, what),) = faults(text)
    assert (path[0], what) in (("data", "too_deep"), ("json", "malformed"))


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: (inner,), lambda inner: {"a": inner}])
def test_what_is_nested_as_deeply_as_can_be_written_is_read(wrap: Any) -> None:
    nested: Any = 1
    for _ in range(1_000):
        deeper = Custom("x", wrap(nested))
        try:
            to_json(deeper)
        except ValidationError:
            break
        nested = deeper.data
    assert from_json(to_json(Custom("x", nested))) == Custom("x", nested)


json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names | st.sampled_from(["$", "type"]), inner),
    max_leaves=4,
)


@given(strategies.values | strategies.errors | strategies.events, json_data, st.data())
def test_a_value_with_something_else_in_some_place_is_read_or_refused(
    value: Any, other: Any, data: st.DataObject
) -> None:
    written = json.loads(to_json(value))
    place = written
    while True:
        keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = other
    for cls in (None, type(value)):
        try:
            came = from_json(json.dumps(written), cls)
        except ValidationError as error:
            refused = error
        else:
            assert from_json(to_json(came)) == came
            continue
        assert refused.errors


def test_unknown_fields_are_skipped() -> None:
    assert from_json('{"$": "Message", "role": "user", "mood": "good"}') == Message("user")
    assert from_json('{"type": "message", "role": "user"}', Message) == Message("user")
    assert from_json('{"type": "text_delta", "delta": "Hi", "mood": "good"}') == TextDelta("Hi")
    assert from_json('{"$": "StreamError", "reason": "timeout", "mood": "bad"}') == StreamError("timeout")


@pytest.mark.parametrize(
    ("text", "cls", "path", "what"),
    [
        ('{"content": "Hi"}', Message, ("role",), "missing"),
        ('{"type": "text_delta"}', None, ("delta",), "missing"),
        ('{"$": "StreamError"}', None, ("reason",), "missing"),
        ('{"messages": [{"role": "user"}, {}]}', Thread, ("messages", 1, "role"), "missing"),
        ('{"type": "step_completed", "result": {"thread": {}}}', None, ("result", "response"), "missing"),
        ('{"role": 5}', Message, ("role",), "wrong_type"),
        ('{"role": "robot"}', Message, ("role",), "unknown"),
        ('{"role": "user", "content": null}', Message, ("content",), "wrong_type"),
        ('{"role": "user", "content": 5}', Message, ("content",), "wrong_type"),
        ('{"messages": {"role": "user"}}', Thread, ("messages",), "wrong_type"),
        ('{"messages": ["Hi"]}', Thread, ("messages", 0), "wrong_type"),
        ('{"finish_reason": "tired"}', Response, ("finish_reason",), "unknown"),
        ('{"temperature": "hot"}', Request, ("temperature",), "wrong_type"),
        ('{"stop": "END"}', Request, ("stop",), "wrong_type"),
        ('{"stop": [1]}', Request, ("stop", 0), "wrong_type"),
        ('{"name": "f", "manual": "yes"}', Tool, ("manual",), "wrong_type"),
        ('{"type": "message_completed", "message": {}}', None, ("message", "role"), "missing"),
        ('{"type": "error", "error": {"$": "Usage"}}', None, ("error",), "wrong_type"),
        ('{"type": "error", "error": {"$": "ToolError", "reason": "boredom"}}', None, ("error", "reason"), "unknown"),
        ('{"$": "ToolError", "reason": []}', None, ("reason",), "unknown"),
        ('{"$": "ToolError", "reason": "timeout", "metadata": 5}', None, ("metadata",), "wrong_type"),
        ('{"$": "AdapterError", "reason": "timeout", "status": "x"}', None, ("status",), "wrong_type"),
        ('{"$": "ValidationError", "reason": "invalid_tool", "errors": [["a"]]}', None, ("errors", 0), "wrong_type"),
        ('{"size": [1]}', ImageRequest, ("size",), "wrong_type"),
        ('{"type": "custom", "name": "x", "data": {"$": "map", "items": [1]}}', None, ("data",), "malformed_struct"),
        (
            '{"type": "custom", "name": "x", "data": {"$": "map", "items": [[[], 1]]}}',
            None,
            ("data",),
            "malformed_struct",
        ),
        ('{"source": "binary", "data": {"$": "bytes", "base64": "!"}}', Image, ("data",), "invalid_base64"),
        ('{"source": "binary", "data": {"$": "bytes", "base64": "é"}}', Image, ("data",), "invalid_base64"),
        (
            '{"role": "user", "content": [{"$": "TextPart", "text": "", "metadata": {"a": ['
            '{"$": "bytes", "base64": "!"}]}}]}',
            Message,
            ("content", 0, "metadata", "a", 0),
            "invalid_base64",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_path(text: str, cls: Any, path: tuple[Any, ...], what: str) -> None:
    assert faults(text, cls) == ((path, what),)


def test_all_missing_fields_are_named_at_once() -> None:
    assert faults("{}", ToolCall) == ((("id",), "missing"), (("name",), "missing"))


@pytest.mark.parametrize("number", [math.inf, -math.inf])
def test_the_infinities_come_back(number: float) -> None:
    assert from_json(to_json(Custom("x", number))).data == number


def test_nan_comes_back() -> None:
    assert math.isnan(from_json(to_json(Custom("x", math.nan))).data)
    assert from_json(to_json(Custom("x", [math.nan]))) == Custom("x", [math.nan])


def test_a_number_that_no_text_holds_is_not_serializable() -> None:
    with pytest.raises(ValidationError) as caught:
        to_json(Custom("x", 10**5000))
    assert caught.value.reason == "not_serializable"


def test_data_that_looks_like_a_tag_stays_data() -> None:
    tricky = {"$": "Message", "role": "user"}
    assert from_json(to_json(Message("user", metadata=tricky))).metadata == tricky
    assert from_json(to_json(RawChunk("x", [{"$": "tuple", "items": []}]))).data == [{"$": "tuple", "items": []}]


def test_an_earlier_form_of_a_raw_chunk_is_read_as_the_event_that_replaces_it() -> None:
    part, usage = RawChunk("x", ProviderPart("p", {"k": b"1"})), RawChunk("usage", {"input_tokens": 3})
    read = from_json(to_json([part, Nested(("c",), part), Nested(("c",), usage), RawChunk("usage", {"tokens": 3})]))
    assert read[:2] == [PartAdded(part.data), Nested(("c",), PartAdded(part.data))]
    assert read[2:] == [Nested(("c",), UsageUpdated(Usage(3))), RawChunk("usage", {"tokens": 3})]


def test_what_a_halting_tool_returned_comes_back() -> None:
    event = ToolExecutionCompleted("a", "f", halt("enough", 42))
    assert from_json(to_json(event)) == event


HALF = "\ud83d"


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"$": "ToolCall", "id": HALF, "name": "f"}, ("id",)),
        ({"$": "ToolCall", "id": "a", "name": HALF}, ("name",)),
        ({"$": "Session", "id": HALF}, ("id",)),
        ({"type": "tool_call_started", "id": HALF, "name": "f"}, ("id",)),
        ({"type": "raw_chunk", "kind": HALF, "data": None}, ("kind",)),
        ({"$": "RunError", "reason": "exists", "run_id": HALF}, ("run_id",)),
        ({"$": "Message", "role": "tool", "content": "", "tool_call_id": HALF}, ("tool_call_id",)),
        ({"$": "Thread", "messages": [{"role": "user", "name": HALF}]}, ("messages", 0, "name")),
        ({"$": HALF}, ()),
        ({"type": HALF}, ()),
    ],
)
def test_half_a_surrogate_pair_in_an_id_or_a_type_is_refused(data: Any, path: tuple[Any, ...]) -> None:
    for text in (json.dumps(data), json.dumps(data, ensure_ascii=False).encode(errors="surrogatepass")):
        with pytest.raises(ValidationError) as caught:
            from_json(text)
        assert caught.value.reason == "invalid_request"
        assert [at for at, _ in caught.value.errors] == [path or ("format",)]
        str(caught.value).encode()


def test_the_path_of_an_error_is_text_that_a_log_can_hold() -> None:
    with pytest.raises(ValidationError) as caught:
        from_json(json.dumps({"$": "Message", "role": "user", "metadata": {HALF: {"$": "?"}}}))
    assert str(caught.value).encode().endswith(b"[at metadata.\\ud83d]")
    assert caught.value.errors[0][0] == ("metadata", HALF)


def test_lone_surrogates_come_back() -> None:
    assert from_json(to_json(TextDelta("\ud83d")).encode()) == TextDelta("\ud83d")
    assert to_json(TextDelta("é")) == '{"type": "text_delta", "delta": "é", "v": 1}'


PICTURE = Image.from_file("/etc/passwd")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (PICTURE, ("source",)),
        (Message("user", (ImagePart(PICTURE),)), ("content", 0, "image", "source")),
        (Session(thread=Thread((user("Hi", PICTURE),))), ("thread", "messages", 0, "content", 1, "image", "source")),
        (Custom("x", {"a": [PICTURE]}), ("data", "a", 0, "source")),
        (ToolProgress("a", "f", PICTURE), ("data", "source")),
    ],
)
def test_an_image_in_a_file_of_this_machine_needs_consent(value: Any, path: tuple[Any, ...]) -> None:
    text = to_json(value)
    assert faults(text) == ((path, "local_file"),)
    with pytest.raises(ValidationError, match=r"'/etc/passwd'; .*local_files=True"):
        from_json(text)
    assert from_json(text, local_files=True) == value
    assert from_json(text, type(value), local_files=True) == value
    assert faults(text) == ((path, "local_file"),)


def test_no_other_way_to_read_a_value_takes_a_file_of_this_machine() -> None:
    data = to_data(PICTURE)
    for read in (lambda: Image.from_dict(data), lambda: Image.from_json(to_json(PICTURE)), lambda: from_data(data)):
        with pytest.raises(ValidationError, match="local_files=True"):
            read()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Message("user", metadata={"a": [1, {"b": object()}]}), ("metadata", "a", 1, "b")),
        (Thread((user("Hi"), Message("tool", {"x": print}))), ("messages", 1, "content", "x")),
        (Request(tools=(Tool("f", handler=print),)), ("tools", 0, "handler")),
        (Response(parsed=object()), ("parsed",)),
        (AdapterError("timeout", metadata={"cause": OSError()}), ("metadata", "cause")),
        (Custom("x", {(1, frozenset()): 1}), ("data", "(1, frozenset())", 1)),
        (ToolExecutionCompleted("a", "f", {(1, frozenset()): 1}), ("result", "(1, frozenset())", 1)),
        (ToolCallCompleted("a", "f", {"x": object()}, ""), ("arguments", "x")),
        ([TextDelta("Hi"), Custom("x", object())], (1, "data")),
        ([user("Hi"), 5], (1,)),
        ({"role": "user"}, ()),
        ("Hi", ()),
        (TextDelta, ()),
    ],
)
def test_what_has_no_json_is_named_with_its_path(value: Any, path: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        to_json(value)
    assert caught.value.reason == "not_serializable"
    assert caught.value.errors == ((path, "not_serializable"),)


def test_a_tool_made_from_a_function_has_no_json() -> None:
    @tool
    def add(a: int) -> int:
        return a

    with pytest.raises(ValidationError, match="handler"):
        to_json(add)


def test_data_that_holds_itself_has_no_json() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValidationError, match="contains itself"):
        to_json(Custom("x", loop))


def test_a_result_with_everything_in_it_comes_back() -> None:
    call = ToolCall("a", "f", {"x": (1, b"\0")}, '{"x": 1}', {"server": True})
    message = Message(
        "assistant", (TextPart("Hi"), ImagePart(Image.from_binary(b"\x89", "image/png"))), tool_calls=(call,)
    )
    response = Response(message, "Hi", (call,), "tool_calls", usage=Usage(1, 2), error=StreamError("truncated"))
    result = ChatResult(Thread((message,), {1: 2}), response, error=StreamError("truncated"))
    assert from_json(to_json(result)) == result
