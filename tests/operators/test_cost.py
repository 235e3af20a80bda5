"""Costs of responses, and the usage and cost of every recorded stream beside what genai-prices reads and prices.

Where they differ, a named rule of ours says why; a difference that no rule explains is a failure.
"""

from __future__ import annotations

import builtins
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import pytest
from reactivex import from_iterable

from rxllm import (
    AdapterError,
    Engine,
    EngineError,
    Fake,
    StreamError,
    ToolCall,
    Usage,
    ValidationError,
    chat,
    generate,
    models,
    stream_generate,
)
from rxllm import operators as ops
from rxllm.adapters.anthropic.decoder import MessagesDecoder
from rxllm.adapters.gemini.decoder import GeminiDecoder
from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.events import ErrorEvent, MessageCompleted, MessageStarted, RawChunk, StepRestarted, UsageUpdated
from rxllm.values import Message, ModelInfo, Response, Tool, assistant
from tests.corpus import Recording, recordings

# cost


HAIKU = "anthropic:claude-3-haiku-20240307"  # 0.25 and 1.25 dollars a million, and no other price since


class Named(Fake):
    """A Fake that another provider's name stands on."""

    provider = "anthropic"


def test_the_last_usage_comes_again_with_its_costs() -> None:
    values: dict[str, Any] = {
        "s": MessageStarted(assistant("")),
        "u": UsageUpdated(Usage(1_000_000, 0)),
        "v": UsageUpdated(Usage(1_000_000, 1_000_000)),
        "c": UsageUpdated(Usage(1_000_000, 1_000_000, input_cost=0.25, output_cost=1.25, total_cost=1.5)),
        "m": MessageCompleted(assistant("Hi"), "stop"),
    }
    told = list(from_iterable(values[name] for name in "suvm").pipe(ops.cost(HAIKU)))
    assert told == [values[name] for name in "suvcm"]


def test_as_an_engine_s_operator_it_knows_who_is_asked() -> None:
    engine = Engine(Named(["Hi", Usage(1_000_000, 1_000_000)]), model=HAIKU.partition(":")[2], operators=[ops.cost()])
    usage = generate(engine, "Hello").run().usage
    assert (usage.input_cost, usage.output_cost, usage.total_cost) == (0.25, 1.25, 1.5)
    assert generate(engine, "Hello", model="nobody-knows").run().usage.total_cost is None


def test_behind_a_fallback_the_price_is_that_of_who_has_answered() -> None:
    class Elsewhere(Fake):
        provider = "openai"

    spent = Usage(1_000_000, 1_000_000)
    other = Engine(Named(["Hi", spent]), model=HAIKU.partition(":")[2])
    down = Elsewhere(AdapterError("provider_unavailable"))
    for instead, total in ((other, 1.5), (stream_generate(other, "Hello"), None), (Fake(["Hi", spent]), None)):
        engine = Engine(down, model="gpt-4o", operators=[ops.fallback(instead), ops.cost()], retry=False)
        assert generate(engine, "Hello").run().usage.total_cost == total


def test_a_stream_that_has_answered_instead_is_looked_for_under_any_provider() -> None:
    started = MessageStarted(Message("assistant", metadata={"model": HAIKU.partition(":")[2]}))
    said = [started, UsageUpdated(Usage(1_000_000, 0)), MessageCompleted(assistant("Hi"), "stop")]
    engine = Engine(
        Named(AdapterError("provider_unavailable")),
        operators=[ops.fallback(from_iterable(said)), ops.cost()],
        retry=False,
    )
    assert generate(engine, "Hello").run().usage.total_cost == 0.25


def test_a_response_without_usage_has_not_that_of_the_one_before() -> None:
    first = [MessageStarted(assistant("")), UsageUpdated(Usage(1, 1)), MessageCompleted(assistant("Hi"), "stop")]
    second = [MessageStarted(Message("assistant", metadata={"model": HAIKU.partition(":")[2]})), first[-1]]
    assert list(from_iterable([*first, *second]).pipe(ops.cost())) == [*first, *second]


def test_a_raw_usage_of_an_adapter_has_costs_too() -> None:
    fake = Fake(["Hi", RawChunk("usage", {"input_tokens": 1_000_000, "output_tokens": 0})])
    told = list(stream_generate(fake, "Hi").pipe(ops.cost(HAIKU), ops.only(UsageUpdated)))
    assert [each.usage.total_cost for each in told] == [None, 0.25]


def test_what_a_restart_has_made_void_is_not_said_again() -> None:
    end = MessageCompleted(assistant("Hi"), "stop")
    said = [UsageUpdated(Usage(1_000_000, 0)), StepRestarted("timeout", 2), end]
    assert list(from_iterable(said).pipe(ops.cost(HAIKU))) == said


def test_an_error_has_the_costs_until_then() -> None:
    said = [UsageUpdated(Usage(1_000_000, 0)), ErrorEvent(StreamError("truncated"))]
    told = list(from_iterable(said).pipe(ops.cost(HAIKU)))
    assert [type(each) for each in told] == [UsageUpdated, UsageUpdated, ErrorEvent]


def test_a_chat_sums_the_costs_of_its_steps() -> None:
    turns = [[ToolCall("c", "now", {}), Usage(1_000_000, 0)], ["Noon.", Usage(1_000_000, 0)]]
    engine = Engine(Named(scripts=turns), model=HAIKU.partition(":")[2], operators=[ops.cost()])
    now = Tool("now", "The time.", {"type": "object"}, handler=lambda arguments: "12")
    assert chat(engine, "What time is it?", tools=[now]).run().usage.total_cost == 0.5


def test_cached_tokens_cost_less() -> None:
    plain, cached = (
        stream_generate(Fake(["Hi", usage]), "Hello").pipe(ops.cost(HAIKU), ops.to_response()).run().usage.total_cost
        for usage in (Usage(1_000_000, 0), Usage(1_000_000, 0, cached_input_tokens=1_000_000))
    )
    assert plain is not None
    assert cached is not None
    assert cached < plain


def test_what_the_provider_has_stated_stays() -> None:
    stated = Usage(1_000_000, 1_000_000, total_cost=7.0)
    usage = stream_generate(Fake(["Hi", stated]), "Hello").pipe(ops.cost(HAIKU), ops.to_response()).run().usage
    assert (usage.input_cost, usage.total_cost) == (0.25, 7.0)


def test_an_entry_of_the_catalogue_wins() -> None:
    name = HAIKU.partition(":")[2]
    models.put(ModelInfo(HAIKU, input_price=10.0, output_price=0.0))
    try:
        engine = Engine(Named(["Hi", Usage(1_000_000, 1_000_000)]), model=name, operators=[ops.cost()])
        assert generate(engine, "Hello").run().usage.total_cost == 10.0
    finally:
        models.clear()


@pytest.mark.parametrize("model", [None, "nobody:knows", "anthropic:nobody-knows"])
def test_what_nobody_knows_is_none_and_never_0(model: str | None) -> None:
    answer = stream_generate(Fake(["Hi", Usage(1_000_000, 1_000_000)]), "Hello")
    usage = answer.pipe(ops.cost(model), ops.to_response()).run().usage
    assert (usage.input_cost, usage.output_cost, usage.total_cost) == (None, None, None)


@pytest.mark.parametrize("usage", [Usage(), Usage(3, 1, cached_input_tokens=9)])
def test_counts_that_cannot_be_priced_have_no_price(usage: Usage) -> None:
    answer = stream_generate(Fake(["Hi", usage]), "Hello")
    assert answer.pipe(ops.cost(HAIKU), ops.to_response()).run().usage == usage


@pytest.mark.parametrize("model", ["gpt-4o", ":gpt-4o", "openai:", "", 3])
def test_a_model_is_named_with_its_provider(model: Any) -> None:
    with pytest.raises(ValidationError, match="model"):
        ops.cost(model)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("genai_prices"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(EngineError, match=r"rxllm\[cost\]") as caught:
        ops.cost()
    assert caught.value.reason == "missing_dependency"


# cost_corpus


genai_prices = pytest.importorskip("genai_prices")

DECODERS: dict[str, Callable[[str], Any]] = {
    "anthropic-messages": lambda provider: MessagesDecoder(provider=provider),
    "gemini": lambda provider: GeminiDecoder(),
    "openai-chat": lambda provider: ChatDecoder(provider=provider),
    "openai-responses": lambda provider: ResponsesDecoder(provider=provider),
}
NAMES = {"google-vertex": "google", "moonshot": "moonshotai", "openai-chatgpt": "openai"}
FLAVORS = {"openai-chat": ("chat", "default"), "openai-responses": ("responses",)}
FIELDS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached_input_tokens": "cache_read_tokens",
    "cache_write_input_tokens": "cache_write_tokens",
    "reasoning_tokens": "output_reasoning_tokens",
}


@dataclass(frozen=True)
class Case:
    recording: Recording
    provider: str  # as genai-prices names it
    response: Response[Any]
    priced: Usage  # ours, with costs
    theirs: Any  # the usage that the judge reads; None where it knows no such provider
    price: float | None  # the judge's; None where it knows no such model

    def differences(self) -> Iterator[tuple[str, Any, Any]]:
        if self.theirs is None:
            return
        for ours, other in FIELDS.items():
            counted, read = getattr(self.response.usage, ours) or 0, self.theirs.reported_value(other)
            if counted != read:
                yield ours, counted, read
        if self.price is not None and self.priced.total_cost != pytest.approx(self.price, abs=1e-12):
            yield "total_cost", self.priced.total_cost, self.price


RULES: dict[str, tuple[set[str], Callable[[Case], bool]]] = {
    "a cost that the provider states wins over any list": (
        {"total_cost"},
        lambda case: case.response.usage.total_cost is not None,
    ),
    "nothing is read behind an error": (
        {*FIELDS, "total_cost"},
        lambda case: case.response.error is not None and case.response.usage == Usage(),
    ),
    "xAI counts thoughts beside the output, whoever passes its answer on": (
        {"output_tokens"},
        lambda case: "grok" in (case.response.model or "") and case.provider != "xai",
    ),
    "Gemini's live API calls its output responseTokenCount": (
        {"output_tokens"},
        lambda case: b'"responseTokenCount"' in case.recording.body,
    ),
    "Anthropic's usage leaves out the requests that its server made beside the answer, and lists them": (
        {*FIELDS, "total_cost"},
        lambda case: len(case.response.usage.extra.get("iterations", ())) > 1,
    ),
    "Cerebras says what was cached": ({"cached_input_tokens"}, lambda case: case.provider == "cerebras"),
}


def frames(body: bytes) -> Iterator[dict[str, Any]]:
    lines = [line.removeprefix(b"data:") for line in body.splitlines() if line.startswith(b"data:")]
    try:
        whole = msgspec.json.decode(body)
    except msgspec.DecodeError:
        whole = []
        for line in lines:
            try:
                whole.append(msgspec.json.decode(line))
            except msgspec.DecodeError:
                continue
    for frame in whole if isinstance(whole, list) else [whole]:
        if isinstance(frame, dict):
            yield frame


def counted(api: str, body: bytes) -> dict[str, Any]:
    """The recorded answer as far as it is of its usage, put together as the provider's documentation says."""
    last: dict[str, Any] = {}
    for frame in frames(body):
        match api, frame:
            case "openai-chat", {"usage": dict(usage)} | {"x_groq": {"usage": dict(usage)}}:
                last = {"usage": usage}
            case "openai-responses", {"response": {"usage": dict()} as response}:
                return response
            case "gemini", {"usageMetadata": {"totalTokenCount": int()} as usage}:
                last = {"usageMetadata": usage}
            case "anthropic-messages", {"message": {"usage": dict(usage)}}:
                last = {"usage": usage}
            case "anthropic-messages", {"usage": dict(usage)}:
                stated = {name: value for name, value in usage.items() if value is not None}
                last = {"usage": {**last.get("usage", {}), **stated}}
            case "anthropic-messages", {"type": "message_stop"}:
                break
            case _:
                pass
    return last


def judged(provider: str, api: str, answer: dict[str, Any]) -> Any:
    for flavor in (*FLAVORS.get(api, ()), "anthropic", "default"):
        try:
            unnamed = {name: value for name, value in answer.items() if name != "model"}
            return genai_prices.extract_usage(unnamed, provider_id=provider, api_flavor=flavor).usage
        except (LookupError, ValueError, AttributeError):  # the last of modalities that are numbers
            continue
    return None


def tier(body: bytes) -> dict[str, str]:
    """What the recorded answer says of its price list, wherever in its frames."""
    found = re.findall(rb'"(service_?tier|speed)"\s*:\s*"([^"]+)"', body, re.IGNORECASE)
    return {"speed" if name == b"speed" else "service_tier": value.decode() for name, value in found}


def price(usage: Any, model: str, provider: str, context: dict[str, str]) -> float | None:
    try:
        found = genai_prices.calc_price(usage, model, provider_id=provider, price_context=context)
        return float(found.total_price)
    except (LookupError, ValueError):
        return None


def case_of(recording: Recording) -> Case:
    provider = NAMES.get(recording.provider, recording.provider)
    decoder = DECODERS[recording.api](recording.provider)
    events = from_iterable(decoder.feed(recording.body) + decoder.close())
    response = events.pipe(ops.to_response()).run()
    model = response.model or "unknown"
    priced = events.pipe(ops.cost(f"{provider}:{model}"), ops.to_response()).run().usage
    theirs = judged(provider, recording.api, counted(recording.api, recording.body))
    return Case(
        recording, provider, response, priced, theirs, theirs and price(theirs, model, provider, tier(recording.body))
    )


@cache
def cases() -> tuple[Case, ...]:
    return tuple(case_of(recording) for api in DECODERS for recording in recordings(api))


def test_input_and_output_are_the_total_that_the_provider_states():
    for case in cases():
        usage = case.response.usage
        if usage.total_tokens is not None:
            assert (usage.input_tokens or 0) + (usage.output_tokens or 0) == usage.total_tokens, case.recording


def test_usage_and_cost_are_the_judge_s_but_for_our_rules():
    used: Counter[str] = Counter()
    unexplained: list[Any] = []
    for case in cases():
        for field, ours, other in case.differences():
            rule = next((name for name, (of, holds) in RULES.items() if field in of and holds(case)), None)
            used[str(rule)] += 1
            if rule is None:
                unexplained.append((str(case.recording), field, ours, other))
    assert not unexplained
    assert set(used) == set(RULES), "a rule that explains nothing is not a rule"


def test_most_streams_are_compared():
    assert sum(case.theirs is not None for case in cases()) > 1300
    assert sum(case.price is not None for case in cases()) > 1200


def test_a_stated_cost_is_near_that_of_the_list():
    """Of xAI's ticks the unit is tested by it: what has no server-side tools costs what the list says."""
    stated = [case for case in cases() if b"cost_in_usd_ticks" in case.recording.body and case.price]
    plain = [case for case in stated if case.response.usage.extra.get("num_server_side_tools_used", 0) == 0]
    assert plain
    for case in plain:
        assert case.response.usage.total_cost == pytest.approx(case.price, rel=0.01), case.recording
