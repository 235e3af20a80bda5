"""Every chat adapter of the project goes through the suite; those of images, in ``tests/adapters``."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rxllm import Anthropic, Fake, Gemini, Local, Ollama, OpenAIChat, OpenAIResponses
from rxllm.adapters.local.server import find_weights
from rxllm.events import (
    Event,
    MessageCompleted,
    TextDelta,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.runtime import Stream
from rxllm.testing import ADAPTER_RULES, AdapterConformance, Script, Served, assert_adapter
from rxllm.values import Call, EngineError, Message, Request
from tests.runtime.support import finished, script
from tests.testing import wires

pytestmark = pytest.mark.sockets

FOREVER = 3600.0


class TestOpenAIChat(wires.OpenAIChatWire):
    pass


class TestOpenAIResponses(wires.ResponsesWire):
    pass


class TestAnthropic(wires.AnthropicWire):
    pass


class TestGemini(wires.GeminiWire):
    pass


class TestOllama(wires.OllamaWire):
    pass


@pytest.mark.judges
class TestLocal(wires.LocalWire):
    pass


class Watched:
    """A Fake, and how many of its calls have ended."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self.left = 0
        self.weight = 1

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        return Stream.of(self.fake.stream(request, call).finally_action(self._count))

    def _count(self) -> None:
        self.left += self.weight


class TestFake(AdapterConformance):
    @contextmanager
    def serving(self, script: Script) -> Iterator[Served]:
        pieces: list[Any] = [*(("thinking", piece) for piece in script.thinking), *script.texts, *script.calls]
        pieces += [script.usage] if script.usage is not None else []
        pieces += [("delay", FOREVER)] if script.stalls else []
        pieces += [script.error or ("finish", script.finish_reason)]
        fake = Fake(script=pieces)
        watched = Watched(fake)
        yield Served(watched, lambda: len(fake.requests), lambda: watched.left)


class TestAnAsyncGenerator(AdapterConformance):
    @contextmanager
    def serving(self, script: Script) -> Iterator[Served]:
        received: list[Request] = []
        left: list[Request] = []

        async def adapter(request: Request, call: Call) -> AsyncIterator[Event]:
            received.append(request)
            try:
                for piece in script.thinking:
                    yield ThinkingDelta(piece)
                for text in script.texts:
                    yield TextDelta(text)
                for event in called(script, request):
                    yield event
                if script.error is not None:
                    raise script.error
                if script.stalls:
                    await asyncio.Event().wait()
                if script.usage is not None:
                    yield UsageUpdated(script.usage)
                if script.finish_reason in ("length", "content_filter"):  # the others are those of a plain end
                    yield MessageCompleted(Message("assistant", "".join(script.texts)), script.finish_reason)
            finally:
                left.append(request)

        yield Served(adapter, lambda: len(received), lambda: len(left))


def called(script: Script, request: Request) -> Iterator[Event]:
    """The script's calls, under ids that are new in the thread."""
    taken = {call.id for message in request.messages for call in message.tool_calls}
    for call in script.calls:
        id = call.id if call.id not in taken else f"call_{len(taken)}_{call.id}"
        raw = wires.raw(call)
        yield ToolCallStarted(id, call.name)
        yield ToolCallDelta(id, raw)
        yield ToolCallCompleted(id, call.name, call.arguments, raw)


# In one line


@pytest.mark.parametrize(
    "adapter", [Fake("Hello"), Fake(script=[("thinking", "hm"), "Hello"]), Fake(lambda request: "Hello")]
)
def test_a_fake_in_one_line(adapter: Fake) -> None:
    assert_adapter(adapter)


def test_a_generator_in_one_line() -> None:
    async def hello(request: Request, call: Call) -> AsyncIterator[Event]:
        yield TextDelta("Hello")

    assert_adapter(hello)


SUITES = {
    OpenAIChat: TestOpenAIChat,
    OpenAIResponses: TestOpenAIResponses,
    Anthropic: TestAnthropic,
    Gemini: TestGemini,
    Ollama: TestOllama,
    Local: TestLocal,
}


@pytest.mark.parametrize("suite", SUITES.values(), ids=[cls.__name__ for cls in SUITES])
def test_an_adapter_over_http_in_one_line(suite: Any) -> None:
    with suite().serving(Script(("Two, ", "three."))) as served:
        without = suite.without.keys() & ADAPTER_RULES.keys()
        assert_adapter(served.adapter, model="m", api_key="sk-0123456789abcdef", without=without)


def test_it_can_be_asked_where_a_loop_runs() -> None:
    async def main() -> None:
        with TestOpenAIChat().serving(Script(("Two, ", "three."))) as served:
            assert_adapter(served.adapter, model="m")

    asyncio.run(main())


@pytest.mark.judges
def test_the_local_model_in_one_line() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    try:
        find_weights()
    except EngineError as error:
        pytest.skip(str(error))
    # To a model whose template knows no tools, a result is told as a fact, and without them.
    tools = {rule for rule in ADAPTER_RULES if rule.startswith("sends_tool")}
    without = {"sends_key", "sends_assistant", *tools}
    options: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0, "seed": 1}
    assert_adapter(Local(), "Name three primes.", without=without, seconds=120.0, **options)


@pytest.mark.judges
def test_what_is_no_suite_needs_no_pytest() -> None:
    code = """
        import sys
        sys.modules["pytest"] = None
        from rxllm import Fake
        from rxllm.testing import Script, assert_adapter, assert_encoder, assert_executor, sandbox
        assert_adapter(Fake("Hello"))
        with sandbox(Fake("Hello")):
            assert_adapter("openai:gpt-5")
        print("sound")
    """
    assert finished(script(code)) == (0, "sound\n", "")
