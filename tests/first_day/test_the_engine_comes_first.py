"""The conversation under the name that other libraries have for it, and the two arguments the wrong way round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rxllm
from rxllm import EngineError, Fake, chat, generate, session, step, stream_generate, user

FUNCTIONS: list[Any] = [generate, stream_generate, step, rxllm.stream_step, chat, rxllm.stream, rxllm.resume]


def fault(function: Any, *args: Any, **options: Any) -> EngineError:
    with pytest.raises(EngineError) as caught:
        function(*args, **options)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("options", [{"messages": [user("Hi")]}, {"prompt": "Hi"}, {"input": "Hi", "temperature": 0.0}])
def test_the_conversation_is_the_second_argument(function: Any, options: dict[str, Any]) -> None:
    error = fault(function, Fake("Hello"), **options)
    name = next(iter(options))
    assert error.reason == "unknown_option"
    assert error.message.startswith(
        f"there is no option {name!r}; pass the prompt or the conversation as the second argument, after the engine; "
    )
    assert error.message.endswith(f"write {function.__name__}(engine, {_second(function)}, ...)")


def _second(function: Any) -> str:
    return "request" if "generate" in function.__name__ else "thread"


def test_a_model_by_keyword_is_no_engine() -> None:
    error = fault(generate, model="openai:gpt-5", messages=[user("Hi")])
    assert error.message.endswith("as the second argument, after the engine; write generate(engine, request, ...)")


def test_the_other_functions_say_their_order_too() -> None:
    assert fault(session.reply, Fake("Hello"), message="Hi").message.endswith("write reply(engine, session, text, ...)")


def test_the_functions_for_images_too() -> None:
    message = fault(rxllm.generate_image, "openai:gpt-image-2", prompt="a bird").message
    assert message.startswith("there is no option 'prompt'; pass the prompt or the conversation as the second argument")
    assert message.endswith("write generate_image(engine, prompt_or_request, ...)")
    message = fault(rxllm.edit_image, "openai:gpt-image-2", image=b"", prompt="a bird").message
    assert "(did you mean 'images'?)" in message


def test_a_missing_argument_without_such_an_option_is_python_s_error() -> None:
    function: Any = generate
    with pytest.raises(TypeError, match=r"generate\(\) missing 1 required positional argument: 'request'"):
        function(Fake("Hello"), temperature=0.0)


def test_an_error_from_inside_is_not_changed() -> None:
    def questions() -> Iterator[str]:
        raise TypeError("mine")
        yield ""

    with pytest.raises(TypeError, match=r"^mine$"):
        rxllm.generate_many(Fake("Hello"), questions())


@pytest.mark.parametrize("engine", ["What is up?", "Explain this: what is up?", "Hi\nthere"])
def test_a_text_in_the_place_of_the_engine(engine: str) -> None:
    error = fault(generate, engine, "openai:gpt-5")
    assert error.reason == "unknown_provider"
    assert error.message == (
        f"{engine!r} is not the name of a model; pass the engine first, as in generate('openai:gpt-5', 'Hi')"
    )


def test_a_long_text_is_cut() -> None:
    assert len(fault(generate, "What is up? " * 1000, "openai:gpt-5").message) < 300


def test_a_misspelled_provider_is_still_guessed() -> None:
    assert "(did you mean 'openai'?)" in fault(generate, "open ai:gpt-5", "Hi").message
