"""What operators do with the events of agents, and with users' corrections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Subject, empty, from_iterable
from reactivex.testing import TestScheduler

import rxllm
from rxllm import Engine, Fake, ToolCall, serializer, stream
from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
    PartAdded,
    RawChunk,
    Steered,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.operators._slow_consumers import continues, join_texts, text_of
from rxllm.runtime import to_iter
from rxllm.testing import World, simulate, strategies
from rxllm.testing.event_checks import played
from rxllm.testing.marbles import check, cold, record
from rxllm.values import (
    ChatResult,
    Message,
    ProviderPart,
    Response,
    StepResult,
    StreamError,
    Thread,
    Usage,
    user,
)
from tests.operators.journal import MemoryJournal

RESULTS = (StepCompleted, ChatCompleted, ToolExecutionCompleted, ToolResultEncoded)


def through(operator: Any, events: Iterable[Any]) -> list[Any]:
    return played(from_iterable(events).pipe(operator))


def paths(events: Iterable[Event]) -> list[tuple[str, ...]]:
    return list(dict.fromkeys(event.path for event in events if isinstance(event, Nested)))


def of(path: tuple[str, ...], events: Iterable[Event]) -> list[Event]:
    """The events of one agent, as it has emitted them; of no path, those of the chat itself."""
    if not path:
        return own(events)
    return [event.event for event in events if isinstance(event, Nested) and event.path == path]


def own(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, Nested)]


def fold(events: Iterable[Event]) -> ChatResult:
    return reduce(StreamCollector.apply_event, events, StreamCollector(Thread())).to_chat_result()


def agent(*events: Any, id: str = "c1") -> list[Nested]:
    return [Nested((id,), event) for event in events]


# Presentation


@given(strategies.lawful_chats, st.booleans(), st.booleans(), st.booleans())
def test_filters_drop_the_deltas_of_agents_and_change_no_result(
    events: list[Event], text: bool, tool: bool, thinking: bool
) -> None:
    kept = through(ops.filter_deltas(text, tool, thinking), events)
    dropped = [
        cls for cls, passes in ((TextDelta, text), (ToolCallDelta, tool), (ThinkingDelta, thinking)) if not passes
    ]
    for path in [(), *paths(events)]:
        assert of(path, kept) == [event for event in of(path, events) if type(event) not in dropped]
    assert fold(kept) == fold(events)


def test_raw_frames_of_agents_are_dropped() -> None:
    part = PartAdded(ProviderPart("p", {}))
    events = agent(RawChunk("frame", 1), part, TextDelta("Hi"))
    assert through(ops.include_raw_chunks(), events) == agent(part, TextDelta("Hi"))
    assert through(ops.include_raw_chunks(True), events) == events


# Usage


@given(strategies.lawful_chats)
def test_usage_counts_every_step_of_every_agent_once(events: list[Event]) -> None:
    spent = 0
    for path in [(), *paths(events)]:
        response = 0
        for event in of(path, events):
            if isinstance(event, UsageUpdated):
                response = event.usage.input_tokens or 0
            elif isinstance(event, StepCompleted):
                spent, response = spent + (event.response.usage.input_tokens or 0), 0
        spent += response  # of an agent that has failed midway
    totals = through(ops.usage(), events)
    assert (totals[-1].input_tokens or 0 if totals else 0) == spent


def step(tokens: int, **fields: Any) -> StepCompleted:
    return StepCompleted(StepResult(Thread(), Response(usage=Usage(tokens)), **fields))


def test_the_usage_of_an_agent_counts_as_it_comes() -> None:
    notes: dict[str, Any] = {
        "a": UsageUpdated(Usage(5)),
        "b": Nested(("c",), UsageUpdated(Usage(1))),
        "c": Nested(("c",), UsageUpdated(Usage(2))),
        "d": Nested(("c", "d"), UsageUpdated(Usage(10))),
        "e": Nested(("c", "d"), step(11)),
        "f": Nested(("c",), step(3)),
        "g": step(5),
        "h": UsageUpdated(Usage(100)),
    }
    totals: dict[str, Any] = {
        "1": Usage(5),
        "2": Usage(6),
        "3": Usage(7),
        "4": Usage(17),
        "5": Usage(18),
        "6": Usage(19),
        "7": Usage(119),
    }
    check(ops.usage(), "-abcdefgh|", "^--------!", "-123456-7|", **notes, **totals)


def test_a_restart_takes_back_what_its_agents_have_used() -> None:
    events = [step(1), UsageUpdated(Usage(2)), *agent(UsageUpdated(Usage(4))), StepRestarted("timeout", 2)]
    assert [usage.input_tokens for usage in through(ops.usage(), events)] == [1, 3, 7, 1]


def test_the_cost_of_an_agent_is_that_of_its_own_engine() -> None:
    events = agent(MessageStarted(Message("assistant")), UsageUpdated(Usage(4)), MessageCompleted(Message("assistant")))
    assert through(ops.cost(price=lambda usage: usage.__class__(9)), events) == events


# Text


def _shout(text: str) -> str:
    return text.upper()


@given(strategies.lawful_chats)
def test_the_text_of_each_agent_is_changed_as_if_it_were_alone(events: list[Event]) -> None:
    makes: list[Callable[[], Any]] = [lambda: ops.map_text(_shout), lambda: ops.redact("a+")]
    for make in makes:
        changed = through(make(), events)
        for path in [(), *paths(events)]:
            alone = through(make(), of(path, events))
            inside = [event for event in of(path, changed) if not isinstance(event, RESULTS)]
            assert inside == [event for event in alone if not isinstance(event, RESULTS)]


@given(strategies.lawful_chats)
def test_a_changed_chat_is_as_lawful_as_it_was(events: list[Event]) -> None:
    assert through(ops.verify(), through(ops.redact("a+"), events))


SECRET = "Ann lives in 12 Elm Road."


def secret_chat(depth: int = 2, *, is_open: bool = False) -> list[Event]:
    """A chat whose innermost agent tells a secret, and whose outer ones repeat it; if `is_open`, all of them halt."""
    pieces = [TextDelta("Ann lives in 12 El"), TextDelta("m Road."), TextCompleted(SECRET)]
    message = Message("assistant", SECRET)
    metadata: dict[str, Any] = {}
    events: list[Event] = [MessageStarted(Message("assistant")), *pieces, MessageCompleted(message)]
    results: tuple[Message, ...] = ()
    if depth:
        inner = secret_chat(depth - 1, is_open=is_open)
        end = inner[-1]
        assert isinstance(end, ChatCompleted)
        events.append(ToolExecutionStarted("c", "ask", {}))
        events += [Nested(("c", *getattr(event, "path", ())), getattr(event, "event", event)) for event in inner]
        if is_open:
            metadata = {"agents": {"c": end.result.thread}}
        else:
            events += [ToolExecutionCompleted("c", "ask", SECRET), ToolResultEncoded("c", SECRET)]
            results = (Message("tool", SECRET, tool_call_id="c"),)
    response = Response(message, SECRET)
    kept = Message("assistant", SECRET, metadata=metadata)
    thread = Thread((user("Where does she live?"), kept, *results))
    done = StepResult(thread, response, tool_results=results)
    return [*events, StepCompleted(done), ChatCompleted(ChatResult(thread, response, steps=(done,)))]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_redacted_text_leaves_neither_in_an_agent_nor_in_its_answer(is_open: bool) -> None:
    events = through(ops.redact(r"\d+ Elm Road"), secret_chat(is_open=is_open))
    assert all("Elm" not in serializer.to_json(event) and "Road" not in serializer.to_json(event) for event in events)
    assert "".join(event.delta for event in of(("c", "c"), events) if isinstance(event, TextDelta)) == (
        "Ann lives in [redacted]."
    )


def test_an_answer_that_is_data_is_redacted_too() -> None:
    ran = ToolExecutionCompleted("c1", "ask", {"output_text": "12 Elm Road", "found": ["12 Elm Road", 1]})
    told = ToolExecutionCompleted("c2", "look_up", "12 Elm Road")  # a tool's own result is not the model's
    events = through(ops.redact(r"\d+ Elm Road"), [*agent(TextDelta("Hm")), ran, told])
    assert events[1].result == {"output_text": "[redacted]", "found": ["[redacted]", 1]}
    assert events[2] == told


def test_interleaved_agents_do_not_complete_each_others_secrets() -> None:
    pieces = [("a", "12 El"), ("b", "m Road"), ("a", "m Road"), ("b", "!")]
    events = through(ops.redact(r"\d+ Elm Road"), [Nested((id,), TextDelta(text)) for id, text in pieces])
    texts = {id: "".join(event.event.delta for event in events if event.path == (id,)) for id in "ab"}
    assert texts == {"a": "[redacted]", "b": "m Road!"}


def test_the_words_of_a_broken_agent_come_before_its_tool_has_run() -> None:
    broken = ToolExecutionCompleted("c1", "ask", error=None)
    events = through(ops.redact("12+"), [*agent(TextDelta("about 1")), broken])
    assert events == [*agent(TextDelta("about "), TextDelta("1")), broken]


def test_a_mapped_chat_maps_the_threads_of_agents_that_wait() -> None:
    events = through(ops.map_text(_shout), secret_chat(1, is_open=True))
    result = events[-1].result
    assert [message.text for message in result.thread] == ["Where does she live?", SECRET.upper()]
    assert result.thread[1].metadata["agents"]["c"].last.text == SECRET.upper()


# Deltas for a slow consumer


@given(strategies.lawful_chats)
def test_joined_deltas_are_those_of_one_path_and_block(events: list[Event]) -> None:
    result: list[Any] = []
    for event in events:
        text = text_of(event)
        if text is not None and result and continues(result[-1], event):
            result[-1] = join_texts(result[-1], [text_of(result[-1]) or "", text])
        else:
            result.append(event)
    assert not any(text_of(b) is not None and continues(a, b) for a, b in pairwise(result))
    assert fold(own(result)).thread == fold(own(events)).thread
    for path in paths(events):
        assert fold(of(path, result)).thread == fold(of(path, events)).thread


def test_a_slow_consumer_gets_the_deltas_of_an_agent_joined() -> None:
    source = Subject[Event]()
    with to_iter(source.pipe(ops.conflate())) as items:
        for event in [*agent(*map(TextDelta, "abc")), *agent(TextDelta("d"), id="c2"), TextDelta("e")]:
            source.on_next(event)
        source.on_completed()
        assert list(items) == [*agent(TextDelta("a"), TextDelta("bc")), *agent(TextDelta("d"), id="c2"), TextDelta("e")]


# Cuts


CUTS: dict[str, tuple[str, Any]] = {
    "guard": ("guard_tripped", lambda: ops.guard(lambda text: "a key" if "4711" in text else None)),
    "budget": ("budget_exceeded", lambda: ops.budget(tokens=20)),
    "time_limits": ("timeout", lambda: ops.time_limits(idle=5.0)),
}


@pytest.mark.parametrize(("reason", "make"), CUTS.values(), ids=CUTS)
def test_an_operator_that_cuts_a_chat_completes_what_its_agent_was_saying(reason: str, make: Any) -> None:
    script = ["All is well. ", "The key is 4711. ", "Bye. " * 20, ("delay", 60), "No!"]
    poet = Engine(Fake(script)).as_tool(name="ask", description="Ask.")
    chat = stream(Fake(scripts=[[ToolCall("c1", "ask", {"prompt": "?"})], ["Done."]]), "Hi", tools=[poet])

    async def cutting(world: World) -> list[Event]:
        return await chat.pipe(make(), ops.verify()).to_list()

    *events, end = simulate(cutting, faults=()).value
    assert (type(end), end.error.reason) == (ErrorEvent, reason)
    said = of(("c1",), events)
    text = "".join(event.delta for event in said if isinstance(event, TextDelta))
    assert text.startswith("All is well. ")
    assert (type(said[-1]), said[-1].text) == (TextCompleted, text)


# Time


@pytest.mark.parametrize(
    "event", [TextDelta("a"), MessageStarted(Message("assistant")), MessageCompleted(Message("assistant")), step(1)]
)
def test_an_agent_that_works_is_not_silent(event: Event) -> None:
    check(
        ops.time_limits(idle=4),
        "-a--n--n--n--|",
        "^------------!",
        "-a--n--n--n--|",
        a=TextDelta("a"),
        n=agent(event)[0],
    )


@pytest.mark.parametrize("ping", [RawChunk("ping", {}), UsageUpdated(Usage(1))])
def test_the_pings_of_an_agents_provider_do_not_defeat_a_limit(ping: Event) -> None:
    notes = {"a": TextDelta("a"), "n": agent(ping)[0]}
    warned: list[tuple[float, int]] = []
    warning = ops.stall_warning(4, lambda seconds, events: warned.append((seconds, events)))
    check(warning, "-a--n--n--|", "^---------!", "-a--n--n--|", resubscribe=False, **notes)
    assert warned == [(4, 2)]


def test_the_end_of_an_agents_response_does_not_end_the_watch() -> None:
    warned: list[int] = []
    warning = ops.stall_warning(4, lambda seconds, events: warned.append(events))
    end = agent(MessageCompleted(Message("assistant")))[0]
    check(warning, "-a--n------|", "^----------!", "-a--n------|", resubscribe=False, a=TextDelta("a"), n=end)
    assert warned == [2]


def test_an_agents_event_wins_a_race() -> None:
    notes = {"s": MessageStarted(Message("assistant")), "n": agent(TextDelta("a"))[0]}
    slow = "---n-|"
    scheduler = TestScheduler()
    sources = [cold(scheduler, marbles, notes) for marbles in ("s-----|", slow)]
    assert record(scheduler, lambda: rxllm.race(*sources)) == [(3, "next", notes["n"]), (5, "end", None)]


# Checks


def guarded(check: Callable[..., Any], events: Iterable[Event]) -> list[Any]:
    return through(ops.guard(check), events)


@given(strategies.lawful_chats)
def test_text_that_passes_its_check_is_unchanged_in_every_agent(events: list[Event]) -> None:
    passed = guarded(lambda text: None, events)
    for path in [(), *paths(events)]:
        assert [e for e in of(path, passed) if not isinstance(e, TextDelta | ThinkingDelta)] == [
            e for e in of(path, events) if not isinstance(e, TextDelta | ThinkingDelta)
        ]
        assert fold(of(path, passed)) == fold(of(path, events))


def test_sentences_of_agents_side_by_side_are_checked_whole() -> None:
    checked: list[str] = []
    pieces = [("a", "My key "), ("b", "All is "), ("a", "is 4711. "), ("b", "well. "), ("a", "Bye.")]
    events = [Nested((id,), TextDelta(text)) for id, text in pieces]
    passed = guarded(lambda text: checked.append(text), events)
    assert sorted(checked) == ["All is well. ", "Bye.", "My key is 4711. "]
    for id in "ab":
        assert "".join(e.event.delta for e in passed if e.path == (id,)) == "".join(t for i, t in pieces if i == id)


def test_a_forbidden_text_of_an_agent_ends_the_stream_before_it_is_shown() -> None:
    secret = agent(TextDelta("All is well. "), TextDelta("The key is "), TextDelta("4711. "), TextDelta("Bye."))
    passed = guarded(lambda text: "a key" if "4711" in text else None, [*secret, *agent(TextCompleted("..."))])
    assert passed[:-1] == agent(TextDelta("All is well. "), TextCompleted("All is well. "))
    assert passed[-1].error.reason == "guard_tripped"


def test_an_agent_that_breaks_off_does_not_hold_back_the_others() -> None:
    ran = ToolExecutionCompleted("a", "ask", None)
    events = [Nested(("a",), TextDelta("I beg")), Nested(("b",), TextDelta("Done. ")), Nested(("b",), TextDelta("Xo"))]
    source = Subject[Event]()
    passed: list[Any] = []
    source.pipe(ops.guard(lambda text: None)).subscribe(passed.append)
    for event in events:
        source.on_next(event)
    assert passed == []
    source.on_next(ran)
    assert passed == [*events[:2]]


# The top level


TOP: dict[str, Callable[[], Any]] = {
    "text": ops.text,
    "thinking": ops.thinking,
    "words": ops.words,
    "sentences": ops.sentences,
    "tool_calls": ops.tool_calls,
    "to_text": ops.to_text,
    "to_response": ops.to_response,
    "only": lambda: ops.only(TextDelta),
}


@pytest.mark.parametrize("make", TOP.values(), ids=TOP)
@given(events=strategies.lawful_chats)
def test_an_operator_that_reads_an_answer_reads_that_of_the_chat_alone(
    make: Callable[[], Any], events: list[Event]
) -> None:
    assert through(make(), events) == through(make(), own(events))


PASSING: dict[str, Callable[[], Any]] = {
    "raise_errors": ops.raise_errors,
    "errors_as_events": ops.errors_as_events,
    "guard": lambda: ops.guard(lambda text: None),
    "smooth": lambda: ops.smooth(0.01),
    "time_limits": lambda: ops.time_limits(first=9, idle=9, total=9),
    "share_folded": lambda: ops.share_folded(None),
    "budget": lambda: ops.budget(tokens=10**6),
    "finally_result": lambda: ops.finally_result(lambda result, outcome: None),
    "race": lambda: ops.race(empty()),
    "tap": lambda: ops.tap(lambda event: None),
    "keep_latest": ops.keep_latest,
    "journaled": lambda: ops.journaled(MemoryJournal()),
}


@pytest.mark.parametrize("make", PASSING.values(), ids=PASSING)
def test_an_error_of_an_agent_is_not_one_of_the_chat(make: Callable[[], Any]) -> None:
    start, end = MessageStarted(Message("assistant")), MessageCompleted(Message("assistant"))
    failed = agent(start, ErrorEvent(StreamError("truncated")))
    events = [start, end, ToolExecutionStarted("c1", "ask", {}), *failed, ToolExecutionCompleted("c1", "ask", None)]
    assert through(ops.only(Nested), through(make(), events)) == failed


@pytest.mark.parametrize("name", ["share_folded", "finally_result", "tap", "raise_errors", "race", "journaled"])
@given(events=strategies.lawful_chats)
def test_agents_and_corrections_pass(name: str, events: list[Event]) -> None:
    of_people = (Nested, Steered)
    kept = through(ops.only(*of_people), through(PASSING[name](), events))
    assert kept == [event for event in events if isinstance(event, of_people)]


def test_the_events_of_agents_are_picked_by_their_class() -> None:
    events = [TextDelta("a"), *agent(TextDelta("b"), TextDelta("c")), TextDelta("d")]
    inside = from_iterable(events).pipe(ops.only(Nested)).map(lambda nested: nested.event)
    assert played(inside.pipe(ops.text())) == ["b", "c"]
