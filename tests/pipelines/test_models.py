"""The catalogue of models: what is refused, what is chosen, what it costs. Without an entry nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from reactivex import from_iterable

import rxllm
from rxllm import (
    AdapterError,
    Engine,
    ErrorEvent,
    Fake,
    Message,
    MessageCompleted,
    MessageStarted,
    RetryPolicy,
    TextDelta,
    ToolCall,
    Usage,
    UsageUpdated,
    ValidationError,
    models,
    tool,
)
from rxllm import operators as ops
from rxllm.images import FakeImages
from rxllm.operators._cost import fill_costs
from rxllm.telemetry import CallFinished
from rxllm.values import Image, ImagePart, ModelInfo, TextPart
from tests.laws import scripts
from tests.laws.scripts import fake as scripted

FORMAT = rxllm.json_schema("city", {"type": "object"})
NAME = "fake:small"


@tool
def look() -> str:
    return "Lima"


SEES = Message("user", (TextPart("What is this?"), ImagePart(Image.from_url("https://example.org/a.png"))))


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    models.clear()
    yield
    models.clear()


def known(**said: Any) -> None:
    models.put(ModelInfo(NAME, **said))


def small(*turns: Any) -> Engine:
    return Engine(Fake(*turns), model="small")


def refused(function: Callable[..., Any], given: Any = "Hi", **options: Any) -> tuple[Any, ...]:
    """The errors of a call that no model has seen."""
    engine = small("never said")
    with pytest.raises(ValidationError) as caught:
        function(engine, given, **options).run()
    assert caught.value.reason == "unsupported_capability"
    assert engine.adapter.requests == []
    assert NAME in str(caught.value)
    return caught.value.errors


# What a model cannot do

every_call = pytest.mark.parametrize("function", [rxllm.generate, rxllm.stream_generate, rxllm.step, rxllm.chat])


@every_call
def test_what_a_model_cannot_do_is_refused_before_it_is_asked(function: Any) -> None:
    known(tools=False, json_schema=False, vision=False)
    assert refused(function, [SEES], tools=[look], response_format=FORMAT) == (
        (("tools",), "tools_disabled"),
        (("response_format",), "json_native_disabled"),
        (("vision",), "vision_disabled"),
    )
    assert refused(function, tools=[look]) == ((("tools",), "tools_disabled"),)


@every_call
def test_what_nobody_has_said_is_left_to_the_provider(function: Any) -> None:
    known(tools=True)
    options: dict[str, Any] = {"tools": [look], "response_format": FORMAT}
    assert function(small("{}"), [SEES], **options).run() is not None
    models.put(ModelInfo("fake:other", tools=False))
    assert function(small("{}"), [SEES], **options).run() is not None


def test_the_model_that_is_asked_counts() -> None:
    models.put(ModelInfo("fake:other", tools=False))
    rxllm.chat(small("Hi"), "Hi", tools=[look]).run()
    with pytest.raises(ValidationError, match=r"fake:other lacks capabilities .*tools \(tools_disabled\)"):
        rxllm.chat(small("Hi"), "Hi", model="other", tools=[look]).run()
    with pytest.raises(ValidationError, match="fake:other"):
        rxllm.generate(small("Hi"), rxllm.request("Hi", model="other", tools=(look,))).run()


def test_an_adapter_that_is_one_model_has_its_name_alone() -> None:
    models.put(ModelInfo("fake", tools=False))
    with pytest.raises(ValidationError, match="fake lacks capabilities"):
        rxllm.generate(Fake("Hi"), "Hi", tools=[look]).run()


def test_a_json_object_is_no_schema_and_text_no_image() -> None:
    known(json_schema=False, vision=False)
    assert rxllm.generate(small("{}"), "Hi", response_format={"type": "json_object"}).run().parsed == {}


def test_a_model_that_makes_no_images_is_not_asked_for_any() -> None:
    models.put(ModelInfo("FakeImages:small", images=False), ModelInfo("FakeImages:large", images=True))
    engine = Engine(image_adapter=FakeImages(Image.from_url("https://example.org/a.png")), model="small")
    with pytest.raises(ValidationError) as caught:
        rxllm.generate_image(engine, "a kestrel").run()
    assert caught.value.errors == ((("images",), "images_disabled"),)
    assert engine.image_adapter.requests == []
    assert len(rxllm.generate_image(engine, "a kestrel", model="large").run().images) == 1


def test_settings_that_an_entry_excludes_are_refused() -> None:
    known(sampling=False, forced_tool_choice=False, reasoning_efforts=("low", "high"))
    options: dict[str, Any] = {"temperature": 0.2, "reasoning_effort": "max", "options": {"top_k": 3}}
    assert refused(rxllm.chat, tools=[look], tool_choice="look", **options) == (
        (("temperature",), "sampling_disabled"),
        (("top_k",), "sampling_disabled"),
        (("tool_choice",), "tool_choice_disabled"),
        (("reasoning_effort",), "reasoning_effort_disabled"),
    )
    assert rxllm.chat(small("Hi"), "Hi", tools=[look], tool_choice="auto", reasoning_effort="low").run() is not None


def test_without_an_entry_what_the_table_knows_refuses_nothing() -> None:
    engine = Engine(Fake("Hi"), model="claude-opus-5-5")
    assert rxllm.generate(engine, "Hi", temperature=0.2, reasoning_effort="none").run().error is None
    assert engine.adapter.requests[0].temperature == 0.2


# Tools and a schema that exclude one another


@pytest.mark.parametrize("function", [rxllm.generate, rxllm.step])
def test_one_call_cannot_have_both(function: Any) -> None:
    known(tools_with_schema=False)
    both: dict[str, Any] = {"tools": [look], "response_format": FORMAT}
    assert refused(function, **both) == ((("response_format",), "excludes_tools"),)
    assert function(small("{}"), "Hi", response_format=FORMAT).run() is not None


def test_a_chat_makes_two_passes_by_itself() -> None:
    known(tools_with_schema=False)
    engine = small(ToolCall("c1", "look", {}), "It is Lima.", '{"name": "Lima"}')
    result = rxllm.chat(engine, "Hi", tools=[look], response_format=FORMAT).run()
    sent = [(len(request.tools), request.response_format) for request in engine.adapter.requests]
    assert sent == [(1, None), (1, None), (0, FORMAT)]
    assert result.final_response is not None
    assert (result.halted_reason, result.final_response.parsed) == ("completed", {"name": "Lima"})
    assert result.metadata == {"structured_finalize": {"pass_1_halted": "completed"}}


def test_it_makes_one_where_there_is_nothing_to_part() -> None:
    known(tools_with_schema=False)
    for options in ({"tools": [look]}, {"response_format": FORMAT}, {"response_format": "text", "tools": [look]}):
        engine = small("{}")
        assert rxllm.chat(engine, "Hi", **options).run().metadata == {}
        assert len(engine.adapter.requests) == 1


def test_what_the_caller_says_is_done_or_refused() -> None:
    known(tools_with_schema=False)
    both: dict[str, Any] = {"tools": [look], "response_format": FORMAT}
    assert refused(rxllm.chat, structured_finalize=False, **both) == ((("response_format",), "excludes_tools"),)


@pytest.mark.parametrize("said", [{"tools_with_schema": False}, {}])
def test_no_tool_runs_for_an_answer_that_cannot_be_given(said: dict[str, Any]) -> None:
    known(json_schema=False, **said)
    options: dict[str, Any] = {"tools": [look], "response_format": FORMAT, "structured_finalize": True}
    assert refused(rxllm.chat, **options) == ((("response_format",), "json_native_disabled"),)


# Costs


def test_costs_are_filled_in_at_the_end() -> None:
    known(input_price=2.0, output_price=10.0)
    events = list(rxllm.stream_generate(small(["Hi", Usage(500_000), Usage(1_000_000, 100_000)]), "Hi"))
    filled = Usage(1_000_000, 100_000, input_cost=2.0, output_cost=1.0, total_cost=3.0)
    assert [event for event in events if isinstance(event, UsageUpdated)] == [
        UsageUpdated(Usage(500_000)),
        UsageUpdated(Usage(1_000_000, 100_000)),
        UsageUpdated(filled),
    ]
    assert isinstance(events[-1], MessageCompleted)
    assert rxllm.generate(small(["Hi", Usage(1_000_000, 100_000)]), "Hi").run().usage == filled


def test_the_costs_of_steps_add_up_and_are_told() -> None:
    known(input_price=1.0, output_price=1.0)
    told: list[Any] = []
    adapter = Fake([ToolCall("c1", "look", {}), Usage(1_000_000, 0)], ["Lima.", Usage(2_000_000, 1_000_000)])
    engine = Engine(adapter, model="small", observers=(told.append,))
    assert rxllm.chat(engine, "Hi", tools=[look]).run().usage.total_cost == 4.0
    assert [each.usage.total_cost for each in told if isinstance(each, CallFinished)] == [1.0, 3.0]


def test_a_failed_response_has_cost_something_too() -> None:
    known(input_price=1.0, output_price=1.0)
    events = list(rxllm.stream_generate(small(["H", Usage(1_000_000, 0), ("error", "timeout")]), "Hi"))
    assert isinstance(events[-1], ErrorEvent)
    response = rxllm.generate(small(["H", Usage(1_000_000, 0), ("error", "timeout")]), "Hi").run()
    assert response.usage.total_cost == 1.0


def test_the_usage_of_adapters_that_say_it_raw_is_priced() -> None:
    known(input_price=1.0, output_price=1.0)
    turn = ["Hi", ("usage", {"input_tokens": 1_000_000, "output_tokens": 0})]
    assert rxllm.generate(small(turn), "Hi").run().usage.total_cost == 1.0


def test_what_the_provider_states_stands() -> None:
    info = ModelInfo(NAME, input_price=2.0, output_price=10.0)
    stated = Usage(1_000_000, 1_000_000, input_cost=0.5)
    assert info.priced(stated) == Usage(1_000_000, 1_000_000, input_cost=0.5, output_cost=10.0, total_cost=10.5)
    whole = Usage(1, 1, input_cost=0.1, output_cost=0.2, total_cost=0.4)
    assert info.priced(whole) == whole


@pytest.mark.parametrize(
    ("prices", "usage", "cost"),
    [
        ({}, Usage(1_000_000, 1_000_000), (None, None, None)),
        ({"input_price": 2.0}, Usage(1_000_000, 1_000_000), (2.0, None, None)),
        ({"output_price": 2.0}, Usage(1_000_000, 1_000_000), (None, 2.0, None)),
        ({"input_price": 2.0, "output_price": 2.0}, Usage(1_000_000), (2.0, None, None)),
        ({"input_price": 2.0, "cached_input_price": 0.5}, Usage(1_000_000, None, 800_000), (0.8, None, None)),
        ({"input_price": 2.0}, Usage(1_000_000, None, 800_000), (2.0, None, None)),
        (
            {"input_price": 2.0, "cached_input_price": 0.5, "cache_write_input_price": 4.0},
            Usage(1_000_000, None, 500_000, 250_000),
            (1.75, None, None),
        ),
        ({"input_price": 0.0, "output_price": 0.0}, Usage(5, 5), (0.0, 0.0, 0.0)),
    ],
)
def test_prices_are_per_million_tokens(prices: Any, usage: Usage, cost: Any) -> None:
    priced = ModelInfo(NAME, **prices).priced(usage)
    assert (priced.input_cost, priced.output_cost, priced.total_cost) == pytest.approx(cost)


def test_an_entry_without_prices_and_a_response_without_usage_add_nothing() -> None:
    known(tools=True)
    assert not [e for e in rxllm.stream_generate(small("Hi"), "Hi") if isinstance(e, UsageUpdated)]
    known(input_price=1.0)
    assert not [e for e in rxllm.stream_generate(small("Hi"), "Hi") if isinstance(e, UsageUpdated)]


def test_any_function_can_state_the_costs() -> None:
    asked: list[Any] = []

    def cost(usage: Usage, model: str | None, about: Any) -> Usage:
        asked.append((usage, model))
        return Usage(7, total_cost=1.5)

    started = MessageStarted(Message("assistant", metadata={"model": "small-2"}))
    done = MessageCompleted(Message("assistant", "Hi"), "stop")
    events = [started, UsageUpdated(Usage(3)), UsageUpdated(Usage(7)), TextDelta("Hi"), done]
    given = list(from_iterable(events).pipe(fill_costs(cost)))
    assert given == [*events[:-1], UsageUpdated(Usage(7, total_cost=1.5)), done]
    assert asked == [(Usage(7), "small-2")]


def test_a_function_that_raises_ends_the_stream() -> None:
    def cost(usage: Usage, model: str | None, about: Any) -> Usage:
        raise RuntimeError("its own")

    source = rxllm.stream_generate(Fake(["Hi", Usage(1)]), "Hi").pipe(fill_costs(cost))
    with pytest.raises(RuntimeError, match="its own"):
        source.run()


@given(scripts.scripts, scripts.chat_options)
def test_with_prices_a_chat_is_the_fold_of_its_stream(script: Any, options: Any) -> None:
    """Law: the catalogue changes no equality of results and folds."""
    models.put(ModelInfo("fake", input_price=1.0, output_price=2.0))

    def ended(make: Callable[[Engine], Any]) -> Any:
        retry = RetryPolicy(max_attempts=2, base_delay=0.0, jitter=0.0)
        try:
            return make(Engine(scripted(script), tools=tuple(scripts.TOOLS), retry=retry)).run()
        except AdapterError as error:
            return error

    result = ended(lambda engine: rxllm.chat(engine, "Hi", **options))
    assert result == ended(lambda engine: rxllm.stream(engine, "Hi", **options).pipe(ops.to_chat_result()))
    if isinstance(result, rxllm.ChatResult):
        for step in result.steps:
            usage = step.response.usage
            assert (usage.input_cost is None) == (usage.input_tokens is None)
