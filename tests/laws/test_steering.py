"""Laws of corrections: what a user types at any moment is applied once or told as unused, and results stay folds."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import Subject

import rxllm
from rxllm import Thread, serializer, user
from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.events import (
    ChatCompleted,
    Event,
    MessageCompleted,
    MessageStarted,
    Steered,
    StepCompleted,
    TextCompleted,
    TextDelta,
    ToolCallStarted,
    ToolExecutionStarted,
)
from rxllm.runtime import Stream
from tests.examples import examples
from tests.laws import scripts
from tests.laws.support import check_laws, engine
from tests.laws.test_by_hand import TURNS, hand

law = settings(deadline=None, max_examples=examples(150))
THREAD = Thread((user("Hi"),))
SPOKEN = ["Aye. ", "One two", ". Three", " four! ", "Mr. ", "Five\n", "done."]

spoken = st.lists(st.lists(st.sampled_from(SPOKEN), min_size=1, max_size=6), min_size=2, max_size=4)
plans = st.lists(st.tuples(st.integers(-1, 25), st.sampled_from(["Stop!", "Go on.", "Why?"])), max_size=3).map(
    lambda plan: [(at, f"{text} {i}") for i, (at, text) in enumerate(sorted(plan, key=lambda moment: moment[0]))]
)
places = st.sampled_from(["sentence", "step"])


def steered(make: Callable[[Any], Stream[Event]], plan: list[tuple[int, str]]) -> tuple[list[Event], list[str]]:
    """The events of a chat in which the user types at these events; and what was typed before its end."""
    steer: Subject[str] = Subject()
    events: list[Event] = []
    typed: list[str] = []

    def see(event: Event) -> None:
        events.append(event)
        type_at(len(events) - 1)

    def type_at(place: int) -> None:
        for at, text in plan:
            if at == place and steer.observers:
                typed.append(text)
                steer.on_next(text)

    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        subscription = steer.subscribe(observer)
        type_at(-1)
        return subscription

    for _ in make(Stream(subscribe)).pipe(ops.errors_as_events(), ops.tap(see)):
        pass
    assert not steer.observers
    return events, typed


def options_of(drawn: dict[str, Any]) -> dict[str, Any]:
    return {**drawn, "max_concurrency": 1}


@law
@given(scripts.scripts | spoken, scripts.chat_options, plans, places)
def test_a_steered_chat_is_its_fold_and_each_message_is_told_once(
    script: Any, drawn: Any, plan: Any, place: Any
) -> None:
    """Law: result = fold of the events; Steered and unused messages are those that were typed, in order."""
    options = options_of(drawn)
    events, typed = steered(
        lambda steer: rxllm.stream(engine(script), THREAD, steer=steer, steer_at=place, **options), plan
    )
    messages = [(event.message.text, event.used) for event in events if isinstance(event, Steered)]
    if not isinstance(events[-1], ChatCompleted):  # it failed before its first event, or by a bug of the developer's
        return
    result = events[-1].result
    assert reduce(StreamCollector.apply_event, events, StreamCollector(THREAD)).to_chat_result() == result
    assert [text for text, _ in messages] == typed
    used = [text for text, is_used in messages if is_used]
    assert [message.text for message in result.thread if message.role == "user"] == ["Hi", *used]
    late = [text for text, is_used in messages if not is_used]
    assert [message.text for message in result.metadata.get("unused_steering", ())] == late
    assert len(result.steps) <= options.get("max_turns", 8)
    for event in events:
        assert serializer.from_json(serializer.to_json(event)) == event
    if result.halted_reason != "ask_user":  # whose question is the chat's own
        folded = reduce(StreamCollector.apply_event, events[:-1], StreamCollector(THREAD))
        assert folded.thread == result.thread


@law
@given(scripts.scripts | spoken, scripts.chat_options, plans, places)
def test_the_order_of_events_is_lawful(script: Any, drawn: Any, plan: Any, place: Any) -> None:
    """Law: corrections stand between steps or before the end, and no call runs twice."""
    events, _ = steered(
        lambda steer: rxllm.stream(engine(script), THREAD, steer=steer, steer_at=place, **options_of(drawn)), plan
    )
    for before, event in pairwise(events):
        if isinstance(event, Steered) and event.used:
            assert isinstance(before, StepCompleted | Steered)
        if isinstance(before, Steered) and not before.used:
            assert isinstance(event, Steered | ChatCompleted)
    for step in _steps(events):
        ran = [event.id for event in step if isinstance(event, ToolExecutionStarted)]
        assert len(ran) == len(set(ran))


def _steps(events: list[Event]) -> list[list[Event]]:
    steps: list[list[Event]] = []
    for event in events:
        if isinstance(event, MessageStarted) or not steps:
            steps.append([])
        steps[-1].append(event)
    return steps


@law
@given(spoken, plans)
def test_a_cut_is_at_the_end_of_a_sentence(script: Any, plan: Any) -> None:
    """Law: what is kept of a response that was cut are the first sentences of what the model would have said."""
    events, _ = steered(lambda steer: rxllm.stream(engine(script), THREAD, steer=steer), plan)
    for step, pieces in zip(_steps(events), script, strict=False):
        ends = [event for event in step if isinstance(event, MessageCompleted)]
        whole = Stream.of(rxllm.stream_generate(rxllm.Fake(pieces), "Hi"))
        sentences = list(whole.pipe(ops.sentences()))
        if ends and ends[0].raw_finish_reason == "steered":
            text = ends[0].message.text
            assert text in {"".join(sentences[:i]) for i in range(1, len(sentences))}
            assert not any(isinstance(event, ToolCallStarted) for event in step)
            assert "".join(event.delta for event in step if isinstance(event, TextDelta)) == text
            assert [event.text for event in step if isinstance(event, TextCompleted)] == [text]


@law
@given(scripts.scripts | spoken, scripts.chat_options, plans, places)
def test_a_steered_chat_by_hand(script: Any, drawn: Any, plan: Any, place: Any) -> None:
    """Law: the facade's steering is that of `repeat_until_halt`."""
    options = options_of(drawn)
    until = {name: options[name] for name in TURNS if name in options} | {"steer_at": place}
    tools = {name: value for name, value in options.items() if name not in TURNS}
    facade = steered(lambda steer: rxllm.stream(engine(script), THREAD, steer=steer, steer_at=place, **options), plan)
    by_hand = steered(lambda steer: hand["stream"](engine(script), THREAD, {**until, "steer": steer}, **tools), plan)
    assert facade == by_hand


@law
@given(scripts.scripts | spoken, plans, places, st.floats(0, 1))
def test_a_steered_chat_unfolds_at_every_cut(script: Any, plan: Any, place: Any, cut: float) -> None:
    """Law: fold(unfold(state)) = state, with corrections too."""
    events, _ = steered(lambda steer: rxllm.stream(engine(script), THREAD, steer=steer, steer_at=place), plan)
    check_laws(events, round(cut * len(events)), lawful=False)
