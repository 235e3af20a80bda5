"""The examples of the two documents that rxllm grew from, a test each, in the order of the names they explain.

The facade's come first, then those of the fold; after each follows the table of its document, row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

import rxllm
from rxllm import (
    AdapterError,
    ChatResult,
    Engine,
    EngineError,
    Fake,
    Message,
    StreamCollector,
    StreamError,
    Thread,
    ToolCall,
    Usage,
    ask_user,
    halt,
    serializer,
    tool,
    validate,
)
from rxllm import operators as ops
from rxllm.collector import AWAITING_USER
from rxllm.events import (
    EVENT_CLASSES,
    AskUserRequested,
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    StepCompleted,
    TextCompleted,
    TextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolResultEncoded,
)
from rxllm.images import FakeImages
from rxllm.values import Image, StepResult

PICTURE = Image.from_binary(b"\x89PNG", "image/png")
SKETCH = Image.from_binary(b"\x01\x02\x03", "image/png")

ECHO = tool(name="echo", handler=lambda arguments: arguments)
WEATHER = tool(
    name="weather",
    description="forecast by city",
    schema={"type": "object"},
    handler=lambda arguments: {"forecast": "sunny", "city": arguments["city"]},
)
ECHO_TURNS = [[("tool_call", {"id": "c0", "name": "echo", "arguments": {"x": 1}})], ["done"]]
WEATHER_TURN = [("tool_call", {"id": "call_0", "name": "weather", "arguments": {"city": "NYC"}})]


def painter() -> Engine:
    return Engine(image_adapter=FakeImages(PICTURE))


# The facade


def test_getting_started() -> None:
    engine = Engine(Fake(script=["Hello, rxllm!", ("finish", "stop")]))
    assert rxllm.chat(engine, [rxllm.user("Hi.")]).run().final_response.output_text == "Hello, rxllm!"


def test_a_request_is_built_checked_stored_and_read() -> None:
    asked = rxllm.request([rxllm.system("Be helpful."), rxllm.user("Name three primes.")], model="fake:gpt-test")
    validate.request(asked)
    assert serializer.from_json(serializer.to_json(asked)) == asked


def test_a_message_has_five_fields() -> None:
    said = Message("tool", "42", name="add", tool_call_id="c1", metadata={"k": 1})
    assert (said.role, said.content, said.name, said.tool_call_id, said.metadata) == (
        "tool",
        "42",
        "add",
        "c1",
        {"k": 1},
    )


def test_assistant() -> None:
    assert rxllm.assistant("hello") == Message("assistant", "hello", name=None, tool_call_id=None, metadata={})


def test_chat() -> None:
    result = rxllm.chat(Engine(Fake(scripts=ECHO_TURNS), tools=(ECHO,)), [rxllm.user("echo please")]).run()
    assert isinstance(result, ChatResult)
    assert (result.halted_reason, len(result.steps)) == ("completed", 2)


def test_chat_asked_again_with_the_manual_calls_answered() -> None:
    sign = tool(name="sign", manual=True)
    calls = [ToolCall("ca", "echo", {"x": 1}), ToolCall("cm", "sign")]
    engine = Engine(Fake(calls, "signed"), tools=(ECHO, sign))
    result = rxllm.chat(engine, [rxllm.user("Sign it.")]).run()
    assert (result.halted_reason, [call.id for call in result.metadata["manual_tool_calls"]]) == (
        "manual_tool_calls",
        ["cm"],
    )
    assert [message.tool_call_id for message in result.thread if message.role == "tool"] == ["ca"]
    with pytest.raises(EngineError, match="cm"):
        rxllm.chat(engine, result.thread).run()
    answered = result.thread + rxllm.tool_result("cm", "approved")
    assert rxllm.chat(engine, answered).run().output_text == "signed"


def test_edit_image() -> None:
    assert rxllm.edit_image(painter(), SKETCH, "make sky pink").run().images == (PICTURE,)


def test_edit_image_in_its_three_forms() -> None:
    engine = painter()
    rxllm.edit_image(engine, SKETCH, "pink").run()
    rxllm.edit_image(engine, [SKETCH, PICTURE], "pink").run()
    rxllm.edit_image(engine, SKETCH, "pink", mask=PICTURE).run()
    assert [(asked.operation, asked.input_images, asked.mask) for asked in engine.image_adapter.requests] == [
        ("edit", (SKETCH,), None),
        ("edit", (SKETCH, PICTURE), None),
        ("edit", (SKETCH,), PICTURE),
    ]


def test_generate() -> None:
    response = rxllm.generate(Fake(script=["hi", ("finish", "stop")]), rxllm.request([rxllm.user("say hi")])).run()
    assert (response.output_text, response.finish_reason) == ("hi", "stop")


def test_generate_image() -> None:
    assert rxllm.generate_image(painter(), "a kestrel").run().images == (PICTURE,)


def test_generate_image_without_an_image_adapter() -> None:
    calls = (
        rxllm.generate_image(Engine(), "a kestrel"),
        rxllm.edit_image(Engine(), SKETCH, "make sky pink"),
        rxllm.image_variations(Engine(), SKETCH),
    )
    for call in calls:
        with pytest.raises(EngineError) as caught:
            call.run()
        assert caught.value.reason == "no_image_adapter"


def test_image_request() -> None:
    asked = rxllm.values.image_request("a kestrel")
    assert (asked.operation, asked.prompt, asked.n, asked.response_format) == ("generate", "a kestrel", 1, "binary")


def test_image_request_is_checked_stored_and_read() -> None:
    asked = rxllm.values.image_request("a watercolor kestrel", model="gpt-image-1", size=(1024, 1024), n=2)
    validate.image_request(asked)
    assert serializer.from_json(serializer.to_json(asked)) == asked
    assert (asked.model, asked.size, asked.n) == ("gpt-image-1", (1024, 1024), 2)
    with pytest.raises(TypeError):
        rxllm.values.image_request("a kestrel", colour="blue")


def test_image_variations() -> None:
    engine = painter()
    assert rxllm.image_variations(engine, SKETCH).run().images == (PICTURE,)
    (asked,) = engine.image_adapter.requests
    assert (asked.operation, asked.input_images, asked.prompt) == ("variation", (SKETCH,), None)


@pytest.mark.parametrize("options", [{}, {"strict": False}])
def test_json_schema(options: dict[str, bool]) -> None:
    assert rxllm.json_schema("person", {"type": "object"}, **options) == {
        "type": "json_schema",
        "name": "person",
        "schema": {"type": "object"},
        "strict": options.get("strict", True),
    }


def test_request() -> None:
    # There is no stream flag: every call streams.
    asked = rxllm.request([rxllm.user("hi")])
    assert (len(asked.messages), asked.tools, hasattr(asked, "stream")) == (1, (), False)
    asked = rxllm.request([rxllm.user("hi")], model="gpt-4.1-mini", response_format={"type": "json_object"})
    assert (asked.model, asked.response_format) == ("gpt-4.1-mini", {"type": "json_object"})


@pytest.mark.parametrize(
    ("build", "check"),
    [
        (lambda: rxllm.request([]), validate.request),
        (lambda: rxllm.request([rxllm.user("hi")], temperature=9), validate.request),
        (lambda: rxllm.values.image_request(""), validate.image_request),
        (lambda: rxllm.values.image_request("a kestrel", n=0), validate.image_request),
    ],
)
def test_requests_are_built_unchecked(build: Callable[[], Any], check: Callable[[Any], None]) -> None:
    built = build()
    with pytest.raises(rxllm.ValidationError):
        check(built)


def test_step() -> None:
    engine = Engine(Fake(script=[*WEATHER_TURN, ("finish", "tool_calls")]), tools=(WEATHER,))
    result = rxllm.step(engine, [rxllm.user("weather in NYC?")]).run()
    assert (result.done, len(result.tool_results)) == (False, 1)
    assert result.tool_results[0].content == '{"forecast":"sunny","city":"NYC"}'


def test_stream() -> None:
    events = list(rxllm.stream(Engine(Fake(scripts=ECHO_TURNS), tools=(ECHO,)), [rxllm.user("echo please")]))
    assert [isinstance(event, ChatCompleted) for event in events].count(True) == 1
    assert isinstance(events[-1], ChatCompleted)


def test_stream_that_is_left_has_no_end_and_folds_to_a_cancelled_chat() -> None:
    source = rxllm.stream(Engine(Fake(scripts=ECHO_TURNS), tools=(ECHO,)), [rxllm.user("echo please")])
    result = source.take(3).pipe(ops.to_chat_result(Thread((rxllm.user("echo please"),)))).run()
    assert result.halted_reason == "cancelled"


def test_stream_generate() -> None:
    source = rxllm.stream_generate(Fake(script=["hi", ("finish", "stop")]), rxllm.request([rxllm.user("say hi")]))
    assert any(isinstance(event, MessageCompleted) for event in source)


def test_stream_step() -> None:
    source = rxllm.stream_step(Engine(Fake(WEATHER_TURN), tools=(WEATHER,)), [rxllm.user("weather in NYC?")])
    kinds = [type(event) for event in source]
    assert kinds[-4:] == [ToolExecutionStarted, ToolExecutionCompleted, ToolResultEncoded, StepCompleted]
    assert kinds.count(StepCompleted) == 1


def test_system() -> None:
    assert rxllm.system("be helpful") == Message("system", "be helpful", name=None, tool_call_id=None, metadata={})


def test_tool() -> None:
    made = tool(name="weather", description="weather by city", schema={"type": "object"})
    assert (made.name, made.description, made.handler) == ("weather", "weather by city", None)


def test_tool_result() -> None:
    message = rxllm.tool_result("call_abc", {"ok": True})
    assert (message.role, message.tool_call_id, message.content) == ("tool", "call_abc", {"ok": True})


def test_user() -> None:
    assert rxllm.user("hi") == Message("user", "hi", name=None, tool_call_id=None, metadata={})


# Why a chat halts


def _raise(*_: Any) -> Any:
    raise ValueError("no")


def _raise_again(call: ToolCall, error: Exception) -> Any:
    raise error


def called(name: str) -> ToolCall:
    return ToolCall("c1", name, {})


TOOLS = [
    ECHO,
    tool(name="fails", handler=_raise),
    tool(name="asks", handler=lambda arguments: ask_user("Which?", choices=["a", "b"])),
    tool(name="finds", handler=lambda arguments: halt("found", 42)),
    tool(name="signs", manual=True),
]

HALTS: dict[str, tuple[list[Any], dict[str, Any], str, dict[str, Any]]] = {
    "stop": ([["Hi", ("finish", "stop")]], {}, "completed", {}),
    "length": ([["Hi", ("finish", "length")]], {}, "completed", {}),
    "content_filter": ([["Hi", ("finish", "content_filter")]], {}, "completed", {}),
    "error": ([["Hi", ("error", "timeout")]], {}, "error", {}),  # the error itself is ChatResult.error
    "max_turns": ([called("echo"), "late"], {"max_turns": 1}, "max_turns", {"max_turns": 1}),
    "halt_when": (
        [called("echo"), "late"],
        {"halt_when": lambda step: True},
        "halt_when",
        {"halt_when_step_index": 0},
    ),
    "ask_user": (
        [called("asks"), "late"],
        {},
        "ask_user",
        {"pending_question": "Which?", "pending_tool_call_id": "c1", "ask_user_opts": {"choices": ["a", "b"]}},
    ),
    "tool_error": ([called("fails")], {"on_tool_error": "halt"}, "tool_error", {"halt_tool_call_id": "c1"}),
    "a policy that says halt": (
        [called("fails")],
        {"on_tool_error": lambda call, error: "halt"},
        "tool_error",
        {"halt_tool_call_id": "c1"},
    ),
    "a policy that raises what it was given": (
        [called("fails")],
        {"on_tool_error": _raise_again},
        "tool_error",
        {"halt_tool_call_id": "c1"},
    ),
    "a policy that halts": (
        [called("fails")],
        {"on_tool_error": lambda call, error: halt("gave_up", call.name)},
        "gave_up",
        {"halt_tool_call_id": "c1", "halt_result": "fails"},
    ),
    "a policy that raises": (
        [called("fails")],
        {"on_tool_error": _raise},
        "tool_error",
        {"halt_tool_call_id": "c1", "on_tool_error_exception": {"type": "ValueError", "message": "no"}},
    ),
    "manual mode": ([called("echo")], {"mode": "manual"}, "manual_tool_calls", {"manual_turn_index": 0}),
    "a manual tool": (
        [called("signs")],
        {},
        "manual_tool_calls",
        {"manual_turn_index": 0, "manual_tool_calls": (ToolCall("c1", "signs", {}, "{}"),)},
    ),
    "a tool's own": ([called("finds"), "late"], {}, "found", {"halt_tool_call_id": "c1", "halt_result": 42}),
}


@pytest.mark.parametrize(("turns", "options", "reason", "metadata"), HALTS.values(), ids=HALTS)
def test_why_a_chat_halts(turns: list[Any], options: dict[str, Any], reason: str, metadata: dict[str, Any]) -> None:
    result = rxllm.chat(Fake(*turns), "Hi", tools=TOOLS, **options).run()
    assert (result.halted_reason, len(result.steps), result.metadata) == (reason, 1, metadata)
    streamed = rxllm.stream(Fake(*turns), "Hi", tools=TOOLS, **options).pipe(ops.to_chat_result())
    assert streamed.run() == result
    assert (result.error is not None) == (reason == "error")
    assert result.pending_question == metadata.get("pending_question")


@pytest.mark.parametrize(
    ("turn", "options", "reason"),
    [
        (called("asks"), {}, "ask_user"),
        (called("finds"), {}, "found"),
        (called("fails"), {"on_tool_error": "halt"}, "tool_error"),
        (called("signs"), {}, "manual_tool_calls"),
        (["Hi", ("error", "timeout")], {}, "error"),
        ("Hi", {}, "completed"),
    ],
)
def test_every_other_reason_comes_before_halt_when_and_max_turns(turn: Any, options: Any, reason: str) -> None:
    result = rxllm.chat(Fake(turn), "Hi", tools=TOOLS, max_turns=1, halt_when=_raise, **options).run()
    assert result.halted_reason == reason


# The fold

THREAD = Thread((rxllm.user("Hi"),))
ERROR = StreamError("timeout")


def fold(*events: Event, thread: Thread | None = None) -> StreamCollector:
    return reduce(StreamCollector.apply_event, events, StreamCollector(thread))


def test_collector_apply_event() -> None:
    assert fold(TextDelta("hel"), TextDelta("lo")).current_text == "hello"


def test_collector_new() -> None:
    state = StreamCollector()
    assert (state.thread, state.current_text, state.last_response) == (None, "", None)


def test_collector_new_with_a_thread() -> None:
    assert StreamCollector(Thread()).thread == Thread((), {})
    assert StreamCollector(None).thread is None


def test_collector_to_response() -> None:
    response = fold(TextDelta("hi"), MessageCompleted(rxllm.assistant("hi"), "stop")).to_response()
    assert (response.output_text, response.finish_reason) == ("hi", "stop")


def test_collector_to_response_of_a_stream_that_failed() -> None:
    response = fold(TextDelta("hi"), ErrorEvent(ERROR)).to_response()
    assert (response.output_text, response.finish_reason, response.error) == ("hi", "error", ERROR)


@pytest.mark.parametrize("project", [StreamCollector.to_step_result, StreamCollector.to_chat_result])
def test_collector_to_step_and_chat_result_need_a_thread(project: Any) -> None:
    with pytest.raises(StreamError, match="no thread"):
        project(StreamCollector())


def test_collector_to_chat_result() -> None:
    stored = ChatResult(THREAD, halted_reason="completed")
    assert fold(ChatCompleted(stored)).to_chat_result() is stored
    left, failed = fold(TextDelta("hi"), thread=THREAD), fold(ErrorEvent(ERROR), thread=THREAD)
    assert [each.to_chat_result().halted_reason for each in (left, failed)] == ["cancelled", "error"]
    assert left.to_chat_result().final_response == left.to_response()


STEP = StepResult(THREAD + rxllm.assistant("hi"), fold(TextDelta("hi")).to_response(), done=True)
CALL = ToolCallCompleted("a", "add", {"x": 1}, '{"x":1}')
HALT = ToolHalt("a", "enough", 42, "forty-two")
QUESTION = AskUserRequested("b", "ask", "Which?", {"choices": [1]})

FOLDS: dict[str, tuple[list[Event], dict[str, Any]]] = {
    "message_started": ([MessageStarted(Message("assistant"))], {"current_text": "", "done": False}),
    "text_delta": ([TextDelta("a"), TextDelta("b")], {"current_text": "ab"}),
    "text_completed": ([TextDelta("a"), TextCompleted("A")], {"current_text": "A"}),
    "tool_call_started": ([ToolCallStarted("a", "add")], {"tool_call_order": ("a",)}),
    "tool_call_delta": (
        [ToolCallStarted("a", "add"), ToolCallDelta("a", "{"), ToolCallDelta("a", "}")],
        {"current_tool_calls": {"a": ToolCall("a", "add", {}, "{}")}},
    ),
    "tool_call_completed": ([ToolCallDelta("a", "{"), CALL], {"current_tool_calls": {"a": CALL.tool_call}}),
    "message_completed": (
        [MessageCompleted(rxllm.assistant("hi"), "length", "max_tokens", {"k": 1})],
        {
            "finish_reason": "length",
            "raw_finish_reason": "max_tokens",
            "metadata": {"k": 1},
            "last_message": rxllm.assistant("hi"),
        },
    ),
    "raw_chunk of usage": ([RawChunk("usage", {"input_tokens": 3})], {"usage": Usage(3)}),
    "raw_chunk": ([RawChunk("frame", {"any": "thing"})], {"usage": Usage(), "metadata": {}}),
    "error": ([ErrorEvent(ERROR)], {"error": ERROR, "finish_reason": "error"}),
    "tool_execution_started": ([ToolExecutionStarted("a", "add", {})], {"tool_results": (), "halt": None}),
    "tool_execution_completed": ([ToolExecutionCompleted("a", "add", 2)], {"tool_results": (), "halt": None}),
    "tool_result_encoded": ([ToolResultEncoded("a", "2")], {"tool_results": (rxllm.tool_result("a", "2"),)}),
    "tool_halt": ([HALT], {"halt": HALT, "tool_results": (rxllm.tool_result("a", "forty-two"),)}),
    "ask_user_requested": ([QUESTION], {"halt": QUESTION, "tool_results": (rxllm.tool_result("b", AWAITING_USER),)}),
    "the first of two halts": ([QUESTION, HALT], {"halt": QUESTION}),
    "step_completed": (
        [TextDelta("hi"), HALT, MessageCompleted(rxllm.assistant("hi"), "stop", "end"), StepCompleted(STEP)],
        {
            "steps": (STEP,),
            "thread": STEP.thread,
            "current_text": "",
            "current_tool_calls": {},
            "tool_results": (),
            "halt": None,
            "finish_reason": None,
            "raw_finish_reason": None,
            "last_message": None,
            "last_response": STEP.response,
        },
    ),
    "error and metadata outlive step_completed": (
        [MessageCompleted(Message("assistant"), None, None, {"k": 1}), ErrorEvent(ERROR), StepCompleted(STEP)],
        {"error": ERROR, "metadata": {"k": 1}},
    ),
    "chat_completed": (
        [ChatCompleted(ChatResult(THREAD))],
        {"chat_result": ChatResult(THREAD), "done": True},
    ),
}


@pytest.mark.parametrize(("events", "expected"), FOLDS.values(), ids=FOLDS)
def test_what_each_event_folds_to(events: list[Event], expected: dict[str, Any]) -> None:
    state = fold(*events)
    assert {name: getattr(state, name) for name in expected} == expected


def test_each_of_the_sixteen_tags_is_folded_above() -> None:
    folded = {type(event) for events, _ in FOLDS.values() for event in events}
    assert folded == set(EVENT_CLASSES[:16])


@pytest.mark.parametrize("other", [None, 3, "text", {"type": "text_delta", "delta": "x"}, object()])
def test_what_is_no_event_leaves_the_state(other: Any) -> None:
    state = fold(TextDelta("hi"), thread=THREAD)
    assert state.apply_event(other) is state


def test_the_fields_of_a_state() -> None:
    """Each can be read; what cannot be empty says so by None. `done?` is `done`."""
    assert {name: getattr(StreamCollector(), name) for name in STATE} == STATE
    failed = fold(
        TextDelta("hi"), ErrorEvent(ERROR), MessageCompleted(rxllm.assistant("hi"), "error", "boom", {"k": 1})
    )
    said = {"error": ERROR, "finish_reason": "error", "raw_finish_reason": "boom", "metadata": {"k": 1}}
    assert {name: getattr(failed, name) for name in said} == said


STATE = {
    "chat_result": None,
    "current_text": "",
    "current_tool_calls": {},
    "done": False,
    "error": None,
    "finish_reason": None,
    "halt": None,
    "last_message": None,
    "last_response": None,
    "metadata": {},
    "raw_finish_reason": None,
    "steps": (),
    "thread": None,
    "tool_call_order": (),
    "tool_results": (),
    "usage": Usage(),
}


def test_raw_usage_in_another_vocabulary_is_the_adapters_fault() -> None:
    with pytest.raises(TypeError, match="prompt_tokens"):
        fold(RawChunk("usage", {"prompt_tokens": 1}))


@pytest.mark.parametrize(
    ("event", "metadata"),
    [
        (HALT, {"halted_reason": "enough", "halt_tool_call_id": "a", "halt_result": 42}),
        (
            QUESTION,
            {
                "halted_reason": "ask_user",
                "pending_tool_call_id": "b",
                "pending_question": "Which?",
                "ask_user_opts": {"choices": [1]},
            },
        ),
    ],
)
def test_collector_to_step_result_of_a_halt(event: Event, metadata: dict[str, Any]) -> None:
    result = fold(TextDelta("hi"), event, thread=THREAD).to_step_result()
    assert (result.done, result.metadata, len(result.tool_results)) == (True, metadata, 1)


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
def test_collector_to_step_result_is_done_by_its_finish_reason(reason: Any) -> None:
    assert fold(MessageCompleted(Message("assistant"), reason), thread=THREAD).to_step_result().done
    assert not fold(TextDelta("hi"), thread=THREAD).to_step_result().done


def test_generate_of_a_call_that_cannot_begin() -> None:
    failure = AdapterError("authentication_failed")
    with pytest.raises(AdapterError) as caught:
        rxllm.generate(Fake(failure), "hi").run()
    assert caught.value is failure
