"""Thinking that Anthropic counts but does not show: the model is alive."""

from __future__ import annotations

from typing import Any

import pytest
from reactivex.testing import TestScheduler

from rxllm import Anthropic, Engine, Response, ThinkingDelta, Timeouts, generate, stream_generate
from rxllm import operators as ops
from rxllm.adapters.anthropic.decoder import MessagesDecoder
from rxllm.events import Event
from rxllm.testing import World, simulate
from rxllm.testing.loopback import Pause, Reply
from rxllm.testing.marbles import cold, record
from rxllm.values import ThinkingPart
from tests.adapters.anthropic.support import END, HI, PING, START, begin, delta, finish, stop


def thought(tokens: Any, text: str = "") -> bytes:
    return delta(0, "thinking_delta", thinking=text, estimated_tokens=tokens)


BEGIN = START + begin(0, type="thinking", thinking="", signature="")
REST = delta(0, "signature_delta", signature="sig") + stop(0) + HI.replace(b'"index":0', b'"index":1') + finish() + END


def decoded(body: bytes) -> list[Event]:
    decoder = MessagesDecoder()
    return [*decoder.feed(body), *decoder.close()]


def answered(*between: bytes, timeout: Any, **options: Any) -> Response[Any]:
    """The answer of a model that thinks for 100 s, with one of these frames after each ten seconds of them."""

    async def app(world: World) -> Any:
        pieces = [piece for frame in between for piece in (Pause(10.0), frame)]
        server = world.serve(Reply([BEGIN, *pieces, REST]))
        engine = Engine(Anthropic(base_url=server.url, api_key="k"), model="m", retry=False, **options)
        return await generate(engine, "Hi", timeout=timeout)

    return simulate(app, faults=()).value


@pytest.mark.parametrize("tokens", [12, None, 0, "odd", -3, 1.5])
def test_estimates_of_hidden_thinking_keep_a_call_alive(tokens: Any) -> None:
    response = answered(*[thought(tokens)] * 10, timeout=Timeouts(first=15, idle=15))
    assert (response.error, response.output_text) == (None, "Hi")
    assert answered(*[PING] * 10, timeout=Timeouts(first=15, idle=15)).error is not None


def test_every_limit_sees_hidden_thinking() -> None:
    silences: list[int] = []
    limits = [ops.time_limits(idle=15), ops.stall_warning(15, lambda seconds, events: silences.append(events))]
    assert answered(*[thought(None)] * 10, timeout=600.0, operators=limits).output_text == "Hi"
    assert silences == []


def test_hidden_thinking_is_a_delta_without_text() -> None:
    events = decoded(BEGIN + thought(12) + thought(None) + thought(7, "so") + REST)
    deltas = [event for event in events if isinstance(event, ThinkingDelta)]
    assert deltas == [
        ThinkingDelta("", "block_0", 12),
        ThinkingDelta("", "block_0", 0),
        ThinkingDelta("so", "block_0", 7),
    ]
    assert repr(deltas[0]) == "ThinkingDelta(delta='', id='block_0', estimated_tokens=12)"
    assert repr(deltas[1]) == "ThinkingDelta(delta='', id='block_0', estimated_tokens=0)"
    assert repr(ThinkingDelta("so")) == "ThinkingDelta(delta='so', id=None)"


def test_hidden_thinking_changes_no_message() -> None:
    hidden, shown = decoded(BEGIN + thought(12) + REST), decoded(BEGIN + delta(0, "thinking_delta", thinking="") + REST)
    assert hidden[-1] == shown[-1]
    assert shown == [event for event in hidden if not isinstance(event, ThinkingDelta)]
    assert hidden[-1].message.parts[0] == ThinkingPart("", "sig", {"provider": "anthropic", "type": "thinking"})


def test_operators_pass_hidden_thinking_on() -> None:
    deltas = [ThinkingDelta("", "block_0", 12), ThinkingDelta("", "block_0", 30)]

    async def app(world: World) -> Any:
        server = world.serve(Reply([BEGIN, thought(12), thought(30), REST]))
        source = stream_generate(Engine(Anthropic(base_url=server.url, api_key="k"), model="m"), "Hi")
        piped = [
            ops.conflate(),
            ops.redact("secret"),
            ops.smooth(),
            ops.guard(lambda text: True),
            ops.share_folded(None),
        ]
        found = [await source.pipe(operator, ops.only(ThinkingDelta)).to_list() for operator in piped]
        return found, await source.pipe(ops.thinking()).to_list()

    found, texts = simulate(app, faults=()).value
    assert found == [deltas] * len(found)
    assert texts == []


def test_a_budget_counts_hidden_thinking() -> None:
    response = answered(*[thought(60)] * 10, timeout=None, operators=[ops.budget(tokens=400)])
    assert (response.finish_reason, response.output_text) == ("length", "")


def test_a_third_partys_estimate_that_is_no_number_is_a_fault() -> None:
    async def adapter(request: Any, call: Any) -> Any:
        yield ThinkingDelta("", None, "many")  # type: ignore[arg-type]

    error = generate(Engine(adapter, retry=False), "Hi").run().error
    assert "estimated_tokens is not an int or None" in str(error)


def test_text_that_follows_hidden_thinking_is_not_lost_in_operators_that_join() -> None:
    burst = [ThinkingDelta("so it "), ThinkingDelta("", None, 12), ThinkingDelta("is "), ThinkingDelta("well")]
    for operator in (ops.smooth(0.5), ops.conflate()):
        scheduler = TestScheduler()
        events = cold(scheduler, "(abcd)|", dict(zip("abcd", burst, strict=True)))
        seen = [what for _, kind, what in record(scheduler, lambda e=events, op=operator: e.pipe(op)) if kind == "next"]
        assert "".join(event.delta for event in seen) == "so it is well"
        assert [event.estimated_tokens for event in seen if not event.delta] == [12]
