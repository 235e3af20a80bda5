"""What is given by mistake: said at the call, by what it is, and with what was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import Engine, EngineError, Fake, Local, ValidationError

EVENTS = rxllm.stream_generate(Fake("Hi"), "Hello")


@pytest.mark.parametrize("given", [print, "look", None, rxllm.Tool])
def test_what_is_no_tool(given: Any) -> None:
    for make in (lambda: Engine(Fake("Hi"), tools=(given,)), lambda: Engine(Fake("Hi")).with_tools(given)):
        with pytest.raises(
            EngineError, match=r"tools\[0\]: (must be a Tool or a function, not .*rxllm\.tool|.*'print' cannot have)"
        ) as caught:
            make()
        assert caught.value.reason == "invalid_engine"


@pytest.mark.parametrize("name", ["tools", "operators", "observers"])
@pytest.mark.parametrize("given", [3, None, "abc", rxllm.tool(name="one")])
def test_one_where_several_belong(name: str, given: Any) -> None:
    with pytest.raises(EngineError, match=f"an engine's {name} must be a list or other iterable, not"):
        Engine(Fake("Hi"), **{name: given})


def test_what_is_no_observer() -> None:
    with pytest.raises(EngineError, match=r"observers\[1\] must be a function, not 3"):
        Engine(Fake("Hi"), observers=(print, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [3, b"weights", ["a"], Fake("Hi")])
def test_what_is_no_local_model(given: Any) -> None:
    with pytest.raises(ValidationError, match=r"model.*must be a model's name, or the path of a GGUF file"):
        Local(given)
    assert Local(Path("weights.gguf")).model == Path("weights.gguf")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("opnai:gpt-5", "openai"), ("Anthropic:x", "anthropic"), ("antropic", "anthropic"), ("olama:x", "ollama")],
)
def test_a_provider_that_is_nearly_one(name: str, meant: str) -> None:
    for make in (lambda: Engine.from_model(name), lambda: rxllm.generate(name, "Hi")):
        with pytest.raises(
            EngineError, match=rf"\(did you mean '{meant}'\?\); the providers are: .*Write provider:model"
        ):
            make()


@pytest.mark.parametrize("name", ["zzz", "gtp-5"])
def test_one_that_is_none_is_not_guessed(name: str) -> None:
    with pytest.raises(EngineError, match=f"there is no provider '{name}'; the providers are"):
        Engine.from_model(name)


@pytest.mark.parametrize(("given", "reason"), [(3, "missing_stream_adapter"), (None, "missing_adapter")])
def test_what_is_no_model(given: Any, reason: str) -> None:
    with pytest.raises(EngineError) as caught:
        Engine.from_model(given)
    assert caught.value.reason == reason


def test_an_option_that_is_nearly_one() -> None:
    with pytest.raises(EngineError, match=r"no option 'temprature' \(did you mean 'temperature'\?\); .*options="):
        rxllm.generate(Fake("Hi"), "Hi", temprature=0.0)  # type: ignore[call-arg]
    with pytest.raises(EngineError, match=r"no option 'mx_turns' \(did you mean 'max_turns'\?\)"):
        rxllm.chat(Fake("Hi"), "Hi", mx_turns=1)  # type: ignore[call-arg]
    with pytest.raises(EngineError, match=r"no option 'top_k'; to pass it"):
        rxllm.generate(Fake("Hi"), "Hi", top_k=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_steps", "did you mean 'max_turns'?"),
        ("max_iterations", "did you mean 'max_turns'?"),
        ("functions", "did you mean 'tools'?"),
        ("max_completion_tokens", "did you mean 'max_tokens'?"),
        ("instructions", "did you mean 'system'?"),
        ("messages", "the second argument"),
        ("stream", "stream_generate"),
        ("top_k", "options={'top_k': 1}"),
    ],
)
def test_an_option_by_the_name_that_others_give_it(name: str, meant: str) -> None:
    with pytest.raises(EngineError) as caught:
        rxllm.chat(Fake("Hi"), "Hi", **{name: 1})
    assert caught.value.reason == "unknown_option"
    assert f"no option {name!r}" in caught.value.message
    assert meant in caught.value.message


@pytest.mark.parametrize(
    "given", ["jsn", "json", {"type": "x"}, {}, {"type": "json_schema"}, {"type": "json_schema", "name": "a"}]
)
def test_what_is_no_response_format_says_what_is_allowed(given: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        rxllm.generate(Fake("Hi"), "Hi", response_format=given)
    ((path, fault),) = caught.value.errors
    assert path == ("response_format",)
    for allowed in ("dataclass", "json_schema(...)", "'text'", "{'type': 'json_object'}"):
        assert allowed in fault
    assert fault.endswith(f"not {given!r}")


@pytest.mark.parametrize("given", ["text", {"type": "text"}, {"type": "json_object"}, rxllm.json_schema("x", {})])
def test_every_response_format_that_a_request_may_have_is_an_option_too(given: Any) -> None:
    assert rxllm.generate(Fake("{}"), "Hi", response_format=given).run().output_text == "{}"
