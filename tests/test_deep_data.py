"""Data that is deep, holds itself, or has numbers that are too long, where it crosses the border: typed errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rxllm
from rxllm import (
    AdapterError,
    Anthropic,
    Engine,
    Fake,
    Gemini,
    LLMError,
    Ollama,
    OpenAIChat,
    OpenAIResponses,
    Response,
    ToolCall,
    ValidationError,
    chat,
    generate,
    stream_generate,
)
from rxllm.testing.loopback import Loopback, Reply
from rxllm.testing.loopback import chat as answer
from rxllm.values.secret_names import masked

KEY = "sk-secret-key-of-mine"
ADAPTERS: list[Any] = [OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama]


def nested(levels: int) -> Any:
    value: Any = KEY
    for _ in range(levels):
        value = [value]
    return value


def cyclic(copies: int = 1) -> Any:
    value: list[Any] = []
    value += [value] * copies
    return value


def doubled() -> Any:
    value: Any = [1]
    for _ in range(60):
        value = [value, value]
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "500 levels": lambda: nested(500),
    "900 levels": lambda: nested(900),
    "5000 levels": lambda: nested(5000),
    "cyclic": cyclic,
    "cyclic and wide": lambda: cyclic(2),
    "long": lambda: 10**5000,
    "negative": lambda: -(10**5000),
}


def json_of(levels: int) -> bytes:
    return b"[" * levels + b'"' + KEY.encode() + b'"' + b"]" * levels


def ends(source: Any) -> Any:
    """The result of `source`, or its typed error: anything else is a fault."""
    try:
        return source.run()
    except LLMError as error:
        repr(error)
        str(error)
        return error


@pytest.mark.sockets
@pytest.mark.parametrize("levels", [500, 700, 900, 5000])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_frame_or_an_error_body_that_is_nested_deep(adapter: Any, levels: int) -> None:
    body = b'{"error": {"message": "no ' + KEY.encode() + b'", "x": ' + json_of(levels) + b"}}"
    replies = [
        Reply(b"data: " + body + b"\n\n"),
        Reply(b"data: " + json_of(levels) + b"\n\n"),
        Reply(body, 400, {"Content-Type": "application/json"}),
    ]
    with Loopback(replies) as server:
        engine = Engine(adapter(base_url=server.url, api_key=KEY), model="m", retry=False)
        for _ in replies:
            ended = ends(generate(engine, "Hi"))
            error = ended.error if isinstance(ended, Response) else ended
            if error is not None:  # a frame that means nothing to an adapter is passed over
                assert KEY not in f"{error!r} {error} {error.fields()}"


@pytest.mark.sockets
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_option_is_refused_or_sent(adapter: Any, value: str) -> None:
    with Loopback(Reply(answer("Hi"))) as server:
        engine = Engine(adapter(base_url=server.url, api_key=KEY), model="m", retry=False)
        ends(generate(engine, "Hi", options={"x": VALUES[value]()}))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"api_key": "x", "a": value}])
def test_a_tool_s_result_that_cannot_be_encoded_is_a_tool_error(value: str, wrap: Any) -> None:
    result = ends(
        chat(Fake(ToolCall("c", "odd", {}), "Sorry."), "Go", tools=[rxllm.tool(name="odd", handler=_odd(value, wrap))])
    )
    assert (result.halted_reason, result.output_text) == ("completed", "Sorry.")


def _odd(value: str, wrap: Any) -> Any:
    return lambda arguments: wrap(VALUES[value]())


@pytest.mark.parametrize("value", VALUES)
def test_a_look_at_a_request_or_an_error_ends(value: str) -> None:
    data = VALUES[value]()
    observed = Engine(Fake("x"), observers=[lambda record: None])
    ends(generate(observed, "Hi", options={"x": data}, metadata={"x": data}))
    ends(stream_generate(Fake(AdapterError("invalid_request", metadata={"body": data})), "Hi", api_key=KEY))
    request = rxllm.request("Hi", options={"x": data})
    with pytest.raises(ValidationError) as caught:
        rxllm.values.request_key(request)
    assert caught.value.reason == "not_serializable"


def test_masked_data_keep_their_shape_whatever_it_is() -> None:
    shared = [1, 2]
    assert masked({"a": shared, "b": (shared, shared), "key": 1}) == {
        "a": [1, 2],
        "b": ([1, 2], [1, 2]),
        "key": "[key]",
    }
    assert masked(cyclic(2)) == ["[nested too deeply]"] * 2
    masked(doubled())  # would not end if it were copied branch by branch
