"""What the facade's functions refuse, when, and where an option's value comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rxllm
from rxllm import Engine, EngineError, Fake, LLMError, Request, RetryPolicy, Tool, ValidationError, tool, user
from rxllm.runtime import Stream
from tests.tables import assert_rows

GENERATE = {"generate": rxllm.generate, "stream_generate": rxllm.stream_generate}
STEP = {"step": rxllm.step, "stream_step": rxllm.stream_step}
CHAT = {"chat": rxllm.chat, "stream": rxllm.stream}
ALL: dict[str, Callable[..., Stream[Any]]] = {**GENERATE, **STEP, **CHAT}

every_function = pytest.mark.parametrize("function", ALL.values(), ids=ALL)


# What raises at the call


@every_function
def test_an_unknown_option_names_the_way_to_the_provider(function: Callable[..., Any]) -> None:
    with pytest.raises(EngineError) as caught:
        function(Fake("Hi"), "Hello", top_k=40)
    assert caught.value.reason == "unknown_option"
    assert "options={'top_k': 40}" in caught.value.message


@every_function
def test_an_unknown_param_of_the_engine_is_refused_too(function: Callable[..., Any]) -> None:
    with pytest.raises(EngineError, match="top_k"):
        function(Engine(Fake("Hi"), params={"top_k": 40}), "Hello")


@pytest.mark.parametrize(("function", "name"), [(rxllm.generate, "mode"), (rxllm.step, "max_turns")])
def test_an_option_of_another_call_says_so(function: Callable[..., Any], name: str) -> None:
    with pytest.raises(EngineError, match="not of this call"):
        function(Fake("Hi"), "Hello", **{name: 1})


def test_a_param_for_chats_is_left_out_of_other_calls() -> None:
    engine = Engine(Fake("Hi")).with_params(max_turns=2, mode="manual", temperature=0.5)
    assert rxllm.generate(engine, "Hello").run().output_text == "Hi"


SENSELESS = [
    ("model", ""),
    ("model", 3),
    ("tools", [lambda: None]),
    ("tools", rxllm.Tool("alone")),
    ("tool_choice", 1),
    ("temperature", "hot"),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", float("nan")),
    ("temperature", True),
    ("max_tokens", 0),
    ("max_tokens", 1.5),
    ("stop", b"END"),
    ("stop", 3),
    ("top_p", 0),
    ("stop", [1]),
    ("seed", 1.0),
    ("reasoning_effort", 3),
    ("response_format", 1),
    ("options", [("top_k", 1)]),
    ("metadata", "x"),
    ("context", 1),
    ("api_key", b"x"),
    ("session_id", ""),
    ("request_id", 7),
    ("retry", 3),
    ("timeout", 0),
    ("timeout", float("inf")),
    ("emit_text_deltas", 1),
    ("emit_tool_deltas", "no"),
    ("emit_thinking", "no"),
    ("include_raw_chunks", 0),
    ("on_event", "print"),
]


@every_function
def test_values_that_make_no_sense_raise_at_the_call(function: Callable[..., Any]) -> None:
    assert_rows([(function, *row) for row in SENSELESS], check_refused)


def check_refused(function: Callable[..., Any], name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        function(Fake("Hi"), "Hello", **{name: value})
    assert caught.value.reason == "invalid_option"
    assert [path for path, _ in caught.value.errors] == [(name,)]


SENSELESS_FOR_TOOLS = [
    ("mode", "sometimes"),
    ("on_tool_error", "ignore"),
    ("tool_timeout", 0),
    ("tool_timeout", "30"),
    ("max_concurrency", 0),
    ("max_concurrency", 1.5),
    ("tool_executor", "x"),
    ("tool_result_encoder", 1),
    ("approve", True),
]


@pytest.mark.parametrize("function", [*STEP.values(), *CHAT.values()])
def test_so_do_those_for_tools(function: Callable[..., Any]) -> None:
    assert_rows([(function, *row) for row in SENSELESS_FOR_TOOLS], check_refused)


@pytest.mark.parametrize("function", CHAT.values())
@pytest.mark.parametrize(
    ("name", "value"), [("max_turns", 0), ("max_turns", "8"), ("max_turns", True), ("halt_when", 1)]
)
def test_so_do_those_for_chats(function: Callable[..., Any], name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name):
        function(Fake("Hi"), "Hello", **{name: value})


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        rxllm.generate(Fake("Hi"), "Hello", temperature=3.0, seed=1.5)  # type: ignore[arg-type]
    assert [path for path, _ in caught.value.errors] == [("temperature",), ("seed",)]


@every_function
@pytest.mark.parametrize("asked", [None, 3, ["Hi"], {"role": "user"}])
def test_what_is_no_conversation_raises_at_the_call(function: Callable[..., Any], asked: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        function(Fake("Hi"), asked)
    assert caught.value.reason == "invalid_thread"


@every_function
@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (3, "must be text, a message, a list of messages, a Thread or a chat's result, not 3"),
        ([user("Hi"), 3], "messages.1 must be a message, such as user("),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0 must be a part such as"),
    ],
)
def test_an_invalid_message_is_told_what_a_message_is(function: Callable[..., Any], asked: Any, fault: str) -> None:
    with pytest.raises(ValidationError) as caught:
        function(Fake("Hi"), asked)
    assert fault in str(caught.value)


@every_function
def test_an_unknown_provider_raises_at_the_call(function: Callable[..., Any]) -> None:
    with pytest.raises(EngineError) as caught:
        function("nobody:m", "Hello")
    assert (caught.value.reason, caught.value.provider) == ("unknown_provider", "nobody")


@pytest.mark.parametrize(
    "asked",
    [
        "Hi",
        user("Hi"),
        [user("Hi")],
        (user("Hi"),),
        rxllm.Thread((user("Hi"),)),
        {"role": "user", "content": "Hi"},
        [{"role": "user", "content": "Hi"}],
    ],
)
@every_function
def test_a_conversation_may_be_written_in_many_ways(function: Callable[..., Any], asked: Any) -> None:
    fake = Fake("Hello")
    function(fake, asked).run()
    assert fake.requests[0].messages == (user("Hi"),)


@pytest.mark.parametrize("retry", [True, False, None, RetryPolicy(), "default"])
def test_retry_may_be_said_in_many_ways(retry: Any) -> None:
    assert rxllm.generate(Fake("Hi"), "Hello", retry=retry).run().output_text == "Hi"


# What goes through on_error


def failure(source: Stream[Any]) -> Exception:
    errors: list[Exception] = []
    source.subscribe(on_error=errors.append)
    (error,) = errors
    return error


@every_function
@pytest.mark.parametrize(
    ("engine", "asked", "reason"),
    [
        (Engine(), "Hello", "missing_adapter"),
        (Engine(object()), "Hello", "missing_stream_adapter"),
        (Fake("Hi"), [], "invalid_request"),
        (Fake("Hi"), [rxllm.Message("tool", "42")], "invalid_request"),
        (
            Fake("Hi"),
            [rxllm.Message("assistant", "", tool_calls=(rxllm.ToolCall("c1", "f"),))],
            "missing_tool_results",
        ),
    ],
)
def test_all_else_fails_at_subscription(function: Callable[..., Any], engine: Any, asked: Any, reason: str) -> None:
    error = failure(function(engine, asked))
    assert isinstance(error, LLMError)
    assert error.reason == reason


def test_missing_tool_results_are_named() -> None:
    calls = (rxllm.ToolCall("c1", "f"), rxllm.ToolCall("c2", "g"), rxllm.ToolCall("s1", "h", metadata={"server": True}))
    thread = [rxllm.Message("assistant", "", tool_calls=calls), rxllm.tool_result("c1", "done")]
    error = failure(rxllm.generate(Fake("Hi"), thread))
    assert isinstance(error, EngineError)
    assert error.metadata == {"tool_call_ids": ["c2"]}
    assert "g (c2)" in error.message


@every_function
def test_nothing_happens_before_subscribe_and_each_subscription_asks_anew(function: Callable[..., Any]) -> None:
    fake = Fake("Hello")
    stream = function(fake, "Hi")
    assert fake.requests == []
    assert stream.run() == stream.run()
    assert len(fake.requests) == 2


# Precedence

FIELDS: dict[str, tuple[Any, Any, Any, Any]] = {  # the call's, the request's, the engine's, the default
    "model": ("call", "request", "engine", None),
    "tool_choice": ("required", "none", {"name": "f"}, None),
    "temperature": (0.0, 0.5, 1.0, None),
    "top_p": (0.1, 0.5, 1.0, None),
    "max_tokens": (1, 2, 3, None),
    "stop": (("a",), ("b",), ("c",), ()),
    "seed": (0, 1, 2, None),
    "reasoning_effort": ("low", "medium", "high", None),
    "response_format": ("text", {"type": "json_object"}, rxllm.json_schema("x", {}), None),
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_call_wins_over_the_request_over_the_engine_over_the_default(name: str) -> None:
    call, request, engine, default = FIELDS[name]
    fake = Fake("{}")
    bare, full = Engine(fake), Engine(fake).with_params(**{name: engine})
    asked = rxllm.request("Hi", **{name: request})
    for source in (
        rxllm.generate(full, asked, **{name: call}),
        rxllm.generate(full, asked),
        rxllm.generate(full, "Hi"),
        rxllm.generate(bare, "Hi"),
    ):
        source.run()
    assert [getattr(each, name) for each in fake.requests] == [call, request, engine, default]


@pytest.mark.parametrize("function", [*STEP.values(), *CHAT.values()])
@pytest.mark.parametrize("name", FIELDS)
def test_every_request_option_reaches_the_adapter_from_steps_and_chats_too(
    function: Callable[..., Any], name: str
) -> None:
    fake = Fake("Hi")
    function(fake, "Hi", **{name: FIELDS[name][0]}).run()
    assert getattr(fake.requests[0], name) == FIELDS[name][0]


def test_the_engines_model_is_the_last_choice() -> None:
    fake = Fake("Hi")
    engine = Engine(fake, model="own")
    rxllm.generate(engine, "Hi").run()
    rxllm.generate(engine.with_params(model="param"), "Hi").run()
    assert [request.model for request in fake.requests] == ["own", "param"]


def test_an_empty_stop_of_the_call_takes_back_the_engines() -> None:
    fake = Fake("Hi")
    rxllm.generate(Engine(fake).with_params(stop=["END"]), "Hi", stop=()).run()
    assert fake.requests[0].stop == ()


@pytest.mark.parametrize("name", ["options", "metadata"])
def test_mappings_are_laid_over_one_another(name: str) -> None:
    fake = Fake("Hi")
    engine = Engine(fake).with_params(**{name: {"a": 1, "b": 1, "c": 1}})
    rxllm.generate(engine, rxllm.request("Hi", **{name: {"b": 2, "c": 2}}), **{name: {"c": 3}}).run()
    assert getattr(fake.requests[0], name) == {"a": 1, "b": 2, "c": 3}


def test_tools_are_added_and_one_of_the_same_name_takes_its_place() -> None:
    def made(description: str, *names: str) -> list[Tool]:
        return [tool(name=name, description=description) for name in names]

    fake = Fake("Hi")
    engine = Engine(fake, tools=tuple(made("engine", "a", "b", "c", "d"))).with_params(
        tools=made("param", "b", "c", "d")
    )
    rxllm.generate(engine, rxllm.request("Hi", tools=made("request", "c", "d")), tools=made("call", "d", "e")).run()
    assert [(each.name, each.description) for each in fake.requests[0].tools] == [
        ("a", "engine"),
        ("b", "param"),
        ("c", "request"),
        ("d", "call"),
        ("e", "call"),
    ]


def test_structured_finalize_of_a_request_reaches_the_adapter() -> None:
    fake = Fake("{}")
    asked = Request((user("Hi"),), response_format=rxllm.json_schema("x", {}), structured_finalize=True)
    rxllm.generate(fake, asked).run()
    assert fake.requests == [asked]


def test_a_request_that_says_everything_reaches_the_adapter_as_it_is() -> None:
    fake = Fake("{}")
    asked = rxllm.request("Hi", **{name: request for name, (_, request, _, _) in FIELDS.items()}, options={"top_k": 1})
    rxllm.generate(fake, asked).run()
    assert fake.requests == [asked]
