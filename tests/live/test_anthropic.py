"""The Messages API of a real server: llama.cpp, in this process; skipped where it or the weights are not at hand."""

from __future__ import annotations

import pytest

from rxllm.adapters.anthropic import Anthropic
from rxllm.adapters.local.server import find_weights, serve
from rxllm.events import MessageCompleted, TextDelta, UsageUpdated
from rxllm.runtime import run
from rxllm.values import AdapterError, Call, EngineError, Request, system, user
from tests.wire.lawful import lawful

pytestmark = pytest.mark.judges

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")


@pytest.fixture(scope="module")
def adapter() -> Anthropic:
    try:
        weights = find_weights()
    except EngineError as error:
        pytest.skip(str(error))
    return Anthropic(base_url=f"{serve(weights, 8192).url}/v1")


def test_an_answer(adapter: Anthropic):
    request = Request((system("Be brief."), user("Name three primes.")), "any", max_tokens=8, temperature=0.0)
    events = run(adapter.stream(request, Call()).to_list())
    lawful(events)
    assert [event for event in events if isinstance(event, TextDelta)]
    last = events[-1]
    assert isinstance(last, MessageCompleted)
    assert (last.finish_reason, last.raw_finish_reason) == ("length", "max_tokens")
    usage = [event.usage for event in events if isinstance(event, UsageUpdated)][-1]
    assert usage.output_tokens == 8


def test_a_prompt_that_is_too_long(adapter: Anthropic):
    with pytest.raises(AdapterError) as caught:
        run(adapter.stream(Request((user("word " * 20_000),), "any"), Call()))
    assert caught.value.reason == "context_length_exceeded"
