"""A model that is silent: what raises, and what is a result with its error."""

from __future__ import annotations

import pytest

import rxllm
from rxllm import AdapterError, Engine, Fake, LLMError, Response
from rxllm import operators as ops
from rxllm.testing import World, simulate
from rxllm.testing.loopback import STALL, Loopback, Reply

slow = Fake([("delay", 60), "Hello"])


@pytest.mark.sockets
def test_a_server_that_has_not_begun_an_answer_raises() -> None:
    with Loopback([Reply([STALL])]) as server:
        engine = Engine(rxllm.OpenAIChat(api_key="k", base_url=server.url), model="m")
        with pytest.raises(AdapterError, match="timeout"):
            rxllm.generate(engine, "Hi", timeout=1.0, retry=False).run()


def test_an_answer_that_has_begun_is_a_result_that_shows_its_error() -> None:
    async def ask(world: World) -> Response:
        return await rxllm.generate(slow, "Hi", timeout=30, retry=False)

    response = simulate(ask, faults=()).value
    assert (response.output_text, response.finish_reason) == ("", "error")
    assert "timeout" in repr(response)
    with pytest.raises(LLMError, match="timeout"):
        response.raise_for_error()


def test_an_engine_whose_failures_all_raise() -> None:
    engine = Engine(slow, operators=[ops.raise_errors()], retry=False)

    async def ask(world: World) -> None:
        with pytest.raises(LLMError, match="timeout"):
            await rxllm.generate(engine, "Hi", timeout=30)

    simulate(ask, faults=())
