"""What holds on every script. Each test names its law."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import from_iterable

import rxllm
from rxllm import operators as ops
from rxllm import serializer
from rxllm.collector import StreamCollector
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageStarted,
    Nested,
    StepCompleted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolExecutionCompleted,
    ToolProgress,
)
from rxllm.runtime import Stream
from rxllm.testing import strategies
from tests.laws import scripts
from tests.laws.scripts import fake
from tests.laws.support import engine, events_of, law, outcome, unordered

# The fold


@law
@given(scripts.scripts, scripts.presentations)
def test_a_response_is_the_fold_of_its_stream(script: Any, shown: Any) -> None:
    """Law: generate = stream_generate |> to_response, on every script, under every presentation."""
    streamed = rxllm.stream_generate(engine(script), "Hi", **shown).pipe(ops.to_response())
    assert outcome(rxllm.generate(engine(script), "Hi")) == outcome(streamed)


@law
@given(scripts.scripts, scripts.step_options, scripts.presentations)
def test_a_step_is_the_fold_of_its_stream(script: Any, options: Any, shown: Any) -> None:
    """Law: step = stream_step |> to_step_result, on every script, with every policy, under every presentation."""
    streamed = rxllm.stream_step(engine(script), "Hi", **options, **shown).pipe(ops.to_step_result())
    assert outcome(rxllm.step(engine(script), "Hi", **options)) == outcome(streamed)


@law
@given(scripts.scripts, scripts.chat_options, scripts.presentations)
def test_a_chat_is_the_fold_of_its_stream(script: Any, options: Any, shown: Any) -> None:
    """Law: chat = stream |> to_chat_result, on every script, with every policy and halt, under every presentation."""
    streamed = rxllm.stream(engine(script), "Hi", **options, **shown).pipe(ops.to_chat_result())
    assert outcome(rxllm.chat(engine(script), "Hi", **options)) == outcome(streamed)


@law
@given(scripts.scripts, scripts.step_options)
def test_a_step_is_its_parts(script: Any, options: Any) -> None:
    """Law: step = stream_generate |> run_tools |> to_step_result, for who writes the pipe by hand."""
    thread = rxllm.Thread((rxllm.user("Hi"),))
    by_hand = rxllm.stream_generate(engine(script), thread).pipe(
        ops.run_tools(scripts.TOOLS, thread=thread, **options), ops.to_step_result()
    )
    assert outcome(rxllm.step(engine(script), thread, **options)) == outcome(by_hand)


@law
@given(scripts.scripts, scripts.step_options)
def test_what_a_step_says_folds_to_it_even_without_its_last_word(script: Any, options: Any) -> None:
    """Law: the collector needs no StepCompleted: the events before it fold to the same step, but for what waits."""
    thread = rxllm.Thread((rxllm.user("Hi"),))
    events = events_of(rxllm.stream_step(engine(script), thread, **options))
    if not isinstance(events[-1], StepCompleted):
        return
    step = events[-1].result
    folded = reduce(StreamCollector.apply_event, events[:-1], StreamCollector(thread)).to_step_result()
    assert (folded.thread, folded.response, folded.tool_results) == (step.thread, step.response, step.tool_results)
    # Only the last event says that calls wait for their caller, which ends a loop.
    assert folded.done == step.done or (step.done and rxllm.values.unanswered(step.thread))
    for name, value in folded.metadata.items():
        waiting = isinstance(value, tuple)  # the calls that agents wait for; the step's own may come before
        assert step.metadata[name][-len(value) :] == value if waiting else step.metadata[name] == value


@law
@given(strategies.event_lists, strategies.event_lists)
def test_the_fold_is_total_and_pure(events: list[Event], others: list[Event]) -> None:
    """Law: any events in any order fold; a state that is kept stays as it was; equal events give equal states."""
    states = [StreamCollector()]
    for event in events:
        states.append(states[-1].apply_event(event))
    before = [(state.to_response(), state.current_text) for state in states]
    for state in states:
        reduce(StreamCollector.apply_event, others, state)
    assert [(state.to_response(), state.current_text) for state in states] == before
    assert reduce(StreamCollector.apply_event, events, StreamCollector()) == states[-1]


@law
@given(st.lists(strategies.lawful_events, max_size=2))
def test_the_operator_is_the_fold(responses: list[list[Event]]) -> None:
    """Law: scan_collect's last state is the reduction, and to_response is its projection."""
    events = [event for response in responses for event in response]
    source = Stream.of(from_iterable(events))
    folded = reduce(StreamCollector.apply_event, events, StreamCollector())
    assert source.pipe(ops.to_response()).run() == folded.to_response()
    assert list(source.pipe(ops.scan_collect()))[-1:] == ([folded] if events else [])


# Subscriptions

FUNCTIONS: dict[str, Callable[..., Stream[Any]]] = {
    "stream_generate": rxllm.stream_generate,
    "stream_step": rxllm.stream_step,
    "stream": rxllm.stream,
}
every_stream = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


@every_stream
@law
@given(scripts.turns())
def test_each_subscription_starts_afresh(function: Callable[..., Stream[Event]], turn: Any) -> None:
    """Law: a Stream is cold: the same question to the same model gives equal events, as often as it is subscribed."""
    source = function(engine([turn]), "Hi")
    assert unordered(events_of(source)) == unordered(events_of(source))


@every_stream
@law
@given(scripts.scripts)
def test_the_same_script_gives_the_same_events(function: Callable[..., Stream[Event]], script: Any) -> None:
    """Law: determinism: equal scripts give equal events, in order where tools run one by one."""
    options: dict[str, Any] = {} if function is rxllm.stream_generate else {"max_concurrency": 1}
    runs = [events_of(function(engine(script), "Hi", **options)) for _ in range(2)]
    assert runs[0] == runs[1]


@every_stream
@law
@given(scripts.scripts)
def test_nothing_happens_before_subscribe(function: Callable[..., Stream[Event]], script: Any) -> None:
    """Law: building a pipe asks nobody anything."""
    model = fake(script)
    function(model, "Hi").pipe(ops.to_response())
    assert model.requests == []


# Presentation


@every_stream
@law
@given(scripts.scripts, scripts.presentations)
def test_presentation_options_only_leave_out(function: Callable[..., Stream[Event]], script: Any, shown: Any) -> None:
    """Law: what is shown is what there is, less deltas and raw chunks; and no result changes."""
    options: dict[str, Any] = {} if function is rxllm.stream_generate else {"max_concurrency": 1}
    everything = events_of(function(engine(script), "Hi", **options, include_raw_chunks=True))
    left = events_of(function(engine(script), "Hi", **options, **shown))
    rest = iter(everything)
    assert all(event in rest for event in left)
    if function is not rxllm.stream_generate:
        results = [event for event in everything if isinstance(event, StepCompleted | ChatCompleted)]
        assert [event for event in left if isinstance(event, StepCompleted | ChatCompleted)] == results


# JSON


@every_stream
@law
@given(scripts.scripts)
def test_all_that_appears_is_exact_in_json(function: Callable[..., Stream[Event]], script: Any) -> None:
    """Law: from_json(to_json(x)) == x for every event that a stream emits, results included."""
    for event in events_of(function(engine(script), "Hi")):
        assert serializer.from_json(serializer.to_json(event)) == event


@law
@given(scripts.scripts, scripts.chat_options)
def test_results_are_exact_in_json(script: Any, options: Any) -> None:
    """Law: from_json(to_json(result)) == result for chats that end in any way."""
    result = outcome(rxllm.chat(engine(script), "Hi", **options))
    if isinstance(result, rxllm.ChatResult):
        assert serializer.from_json(serializer.to_json(result)) == result


# Order


@law
@given(scripts.scripts, scripts.chat_options)
def test_a_chat_is_steps_and_one_end(script: Any, options: Any) -> None:
    """Law: one StepCompleted closes each step that has begun; at most one ChatCompleted, and it is last."""
    events = events_of(rxllm.stream(engine(script), "Hi", **options))
    kinds = [type(event) for event in events]
    assert kinds.count(StepCompleted) == kinds.count(MessageStarted)
    assert kinds.count(ChatCompleted) == (0 if kinds == [ErrorEvent] else 1)
    if events and isinstance(events[-1], ChatCompleted):
        result = events[-1].result
        assert result.steps == tuple(event.result for event in events if isinstance(event, StepCompleted))
        assert len(result.steps) <= options.get("max_turns", 8)
        assert result.usage == sum((step.usage for step in result.steps), rxllm.Usage())
        nested = (event.event for event in events if isinstance(event, Nested))
        agents = sum(
            (event.result.response.usage for event in nested if isinstance(event, StepCompleted)), rxllm.Usage()
        )
        assert sum((step.agent_usage for step in result.steps), rxllm.Usage()) == agents
        assert (result.halted_reason == "error") == (result.error is not None)


@law
@given(scripts.scripts, scripts.step_options)
def test_a_step_is_one_response_and_one_end(script: Any, options: Any) -> None:
    """Law: stream_step emits one StepCompleted, last, or fails before its first event."""
    kinds = [type(event) for event in events_of(rxllm.stream_step(engine(script), "Hi", **options))]
    assert kinds == [ErrorEvent] or (kinds.count(StepCompleted) == 1 and kinds[-1] is StepCompleted)


@law
@given(scripts.scripts)
def test_blocks_are_closed_and_their_deltas_are_their_text(script: Any) -> None:
    """Law: every block of text and thinking is closed; its joined deltas are its completion; the texts are the
    message's text.
    """
    events = events_of(rxllm.stream_generate(engine(script), "Hi"))
    for delta, completed in ((TextDelta, TextCompleted), (ThinkingDelta, ThinkingCompleted)):
        held: list[str] = []
        for event in events:
            if isinstance(event, delta):
                held.append(event.delta)
            elif isinstance(event, completed):
                assert "".join(held) == event.text
                held = []
        assert held == []
    response = reduce(StreamCollector.apply_event, events, StreamCollector()).to_response()
    texts = [event.text for event in events if isinstance(event, TextCompleted)]
    assert "".join(texts) == response.output_text
    assert response.message is None or response.message.text == response.output_text


@law
@given(scripts.scripts)
def test_the_strings_are_the_text(script: Any) -> None:
    """Law: text() joined = to_text() = output_text, where the stream does not fail."""
    response = outcome(rxllm.generate(engine(script), "Hi"))
    if isinstance(response, rxllm.Response) and response.error is None:
        assert "".join(rxllm.stream_generate(engine(script), "Hi").pipe(ops.text())) == response.output_text
        assert rxllm.stream_generate(engine(script), "Hi").pipe(ops.to_text()).run() == response.output_text


# Tools


@law
@given(scripts.scripts, scripts.step_options)
def test_every_call_of_a_step_has_one_answer_or_waits(script: Any, options: Any) -> None:
    """Law: tool results are in the order of the calls; each call of the thread is answered once, or is pending
    itself or as that of an agent.
    """
    step = outcome(rxllm.step(engine(script), "Hi", **options))
    if not isinstance(step, rxllm.StepResult):
        return
    calls = [call.id for message in step.thread for call in message.tool_calls if not call.metadata.get("server")]
    answered = [message.tool_call_id for message in step.tool_results]
    waiting = [call.id for name in ("manual_tool_calls", "approval_tool_calls") for call in step.metadata.get(name, ())]
    agents = {id for message in step.thread for id in message.metadata.get("agents", {})}
    assert {id.partition("/")[0] for id in waiting if "/" in id} <= agents
    waiting = [*(id for id in waiting if "/" not in id), *agents]
    waiting = calls if step.metadata.get("mode") == "manual" else waiting
    assert answered == [id for id in calls if id not in waiting]
    assert sorted([*answered, *waiting]) == sorted(calls)


@law
@given(scripts.scripts, scripts.step_options)
def test_a_tools_progress_comes_while_it_runs(script: Any, options: Any) -> None:
    """Law: no ToolProgress after its ToolExecutionCompleted; one completion per call."""
    ended: set[str] = set()
    for event in events_of(rxllm.stream_step(engine(script), "Hi", **options)):
        if isinstance(event, ToolProgress | ToolExecutionCompleted):
            assert event.id not in ended
        if isinstance(event, ToolExecutionCompleted):
            ended.add(event.id)
