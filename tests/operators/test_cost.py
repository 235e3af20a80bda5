from __future__ import annotations

import builtins
from typing import Any

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
from rxllm.events import ErrorEvent, MessageCompleted, MessageStarted, RawChunk, StepRestarted, UsageUpdated
from rxllm.values import Message, ModelInfo, Tool, assistant

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
