"""The marbles in a docstring: the source is played in virtual time, and what comes out is what stands there.

A word is one item; it stands where it comes, and what is in brackets comes at once. What a word means is in `WORDS`, or
beside the operator.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import reactivex
from reactivex import Observable
from reactivex.testing import ReactiveTest, TestScheduler

import rxllm
from rxllm import StreamCollector, StreamError, ToolCall, Usage
from rxllm import operators as ops
from rxllm.events import (
    Custom,
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.testing.marbles import record
from rxllm.values import Labelled, Response, StepResult, TextAt, Thread, Timed, assistant
from tests.pictures import NOW, Pairs, plays

WORDS: dict[str, Any] = {
    "start": MessageStarted(assistant("")),
    "H": TextDelta("H"),
    "i": TextDelta("i"),
    "!": TextDelta("!"),
    "Hi": TextCompleted("Hi"),
    "delta": TextDelta("d"),
    "hm": ThinkingDelta("hm"),
    "raw": RawChunk("frame", {}),
    "end": MessageCompleted(assistant("Hi"), "stop"),
    "error": ErrorEvent(StreamError("truncated")),
    "X": StreamError("truncated"),
}

CALL = {
    "c1": ToolCallStarted("c1", "add"),
    "{..}": ToolCallDelta("c1", '{"a":1}'),
    "c1.done": ToolCallCompleted("c1", "add", {"a": 1}, '{"a":1}'),
}


@dataclass
class City:
    name: str

    def __repr__(self) -> str:
        return f'City("{self.name}")'


STEP = StepCompleted(StepResult(Thread(), Response(assistant(""), "", usage=Usage(5))))


def texts(*words: str) -> dict[str, Any]:
    return {word: TextDelta(word) for word in words}


def piped(make: Callable[[], Any]) -> Callable[..., Any]:
    return lambda source: source.pipe(make())


def again(make: Callable[[], Any]) -> Callable[..., Any]:
    """The first line is what the source does, the second what it does when it is subscribed once more."""

    def applied(*sources: Observable[Any]) -> Observable[Any]:
        following = iter(sources)
        return reactivex.defer(lambda _: next(following)).pipe(make())

    return applied


def next_of(last: str) -> Observable[Any] | None:
    return plays(f"---({int(last) + 1}|)") if last < "3" else None


PLAYED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "budget": (piped(lambda: ops.budget(tokens=1)), {**texts(*"Helo"), "Hello": TextCompleted("Hello")}),
    "continue_with": (piped(lambda: ops.continue_with(next_of)), {}),
    "cost": (
        piped(lambda: ops.cost(price=lambda usage: replace(usage, total_cost=0.1))),
        {"usage": UsageUpdated(Usage(3, 1))},
    ),
    "errors_as_events": (piped(ops.errors_as_events), {}),
    "fallback": (lambda source, second: source.pipe(ops.fallback(second)), {}),
    "filter_deltas": (piped(lambda: ops.filter_deltas(text=False)), {}),
    "rxllm.hedge": (again(lambda: ops.hedge(after=10.0)), {}),
    "include_raw_chunks": (piped(ops.include_raw_chunks), {}),
    "items": (
        piped(lambda: ops.items(City, "cities")),
        texts('{"cities": [{"name"', ': "Lima"}, {"na', 'me": "Oslo"}]}'),
    ),
    "lift": (piped(lambda: ops.lift(Pairs)), {}),
    "map_text": (
        piped(lambda: ops.map_text(str.upper)),
        {"message": MessageCompleted(assistant("Hi")), "I": TextDelta("I"), "HI": TextCompleted("HI")},
    ),
    "rxllm.merge_labelled": (lambda a, b: rxllm.merge_labelled({"a": a, "b": b}), {}),
    "only": (piped(lambda: ops.only(TextDelta)), {}),
    "parsed": (piped(lambda: ops.parsed(City)), texts('{"na', 'me": "Lima"}')),
    "rxllm.race": (rxllm.race, texts("A", "B")),
    "raise_errors": (piped(ops.raise_errors), {}),
    "redact": (
        piped(lambda: ops.redact(r"sk-\w+")),
        {f'"{text}"': TextDelta(text) for text in ("my key is sk-", "12345", ", ok?", "my key is ", "[redacted], ok?")},
    ),
    "restart": (again(lambda: ops.restart(NOW)), {}),
    "retry_before_content": (again(lambda: ops.retry_before_content(NOW)), {}),
    "scan_collect": (piped(lambda: ops.scan_collect()), {}),
    "sentences": (piped(ops.sentences), texts("Hi. ", "How ", "are you?")),
    "snapshots": (piped(lambda: ops.snapshots(4.0)), {}),
    "stall_warning": (piped(lambda: ops.stall_warning(5, lambda seconds, events: None)), {}),
    "tap": (piped(lambda: ops.tap(print)), {}),
    "text": (piped(ops.text), {}),
    "text_at": (
        piped(lambda: ops.text_at("items", "*", "name")),
        texts('{"items": [{"name": "Li', 'ma"}, {"name": "Os', 'lo"}]}'),
    ),
    "thinking": (piped(ops.thinking), texts("Hi")),
    "time_limits": (piped(lambda: ops.time_limits(idle=15.0)), {"ping": RawChunk("ping", {})}),
    "to_response": (lambda source: source.pipe(ops.to_response()).map(lambda result: type(result).__name__), {}),
    "to_text": (piped(ops.to_text), {}),
    "tool_calls": (piped(ops.tool_calls), CALL),
    "timed": (piped(ops.timed), {}),
    "trace": (piped(lambda: ops.trace(lambda trace: None)), {}),
    "usage": (piped(ops.usage), {**{word: UsageUpdated(Usage(int(word))) for word in "345"}, "step": STEP}),
    "verify": (piped(ops.verify), {"Ho": TextCompleted("Ho")}),
    "words": (piped(ops.words), texts("Hel", "lo Wo", "rld")),
}

SAID: dict[type[Any], Callable[[Any], str]] = {
    str: str,
    dict: json.dumps,
    ToolCall: lambda call: call.id,
    Usage: lambda usage: f"{usage.input_tokens}",
    StreamCollector: lambda state: state.current_text,
    MessageCompleted: lambda event: "message" if event.finish_reason is None else "end",
    UsageUpdated: lambda event: "usage",
    ErrorEvent: lambda event: "error",
    Custom: lambda event: "abandoned",
    StepRestarted: lambda event: "restarted",
    TextCompleted: lambda event: event.text,
    TextDelta: lambda event: event.delta,
    Response: lambda response: response.output_text,
    TextAt: lambda piece: piece.text,
    Timed: lambda timed: timed.item.upper(),
}
"""How what comes out is written, where the words do not have it."""


def lines(name: str) -> list[tuple[str, str]]:
    """The label and the marbles of each line of the picture."""
    function = getattr(rxllm if name.startswith("rxllm.") else ops, name.removeprefix("rxllm."))
    found = re.search(r"::\n\n((?:    .*\n)+)", inspect.getdoc(function) or "")
    assert found is not None
    rows = [row[4:].split("   (")[0].rstrip() for row in found[1].splitlines()]
    margin = re.search(r" --", rows[0]).start() + 1
    return [(row[:margin].strip(), row[margin:]) for row in rows]


def tokens(marbles: str) -> Iterator[tuple[int, str]]:
    """Each word with its column; an end right behind a word comes with it."""
    at = 0
    for found in re.finditer(r'\w+\("\w+"\)|\(([^)]*)\)|"[^"]*"(?=-|\||$)|[^-|()]+|\|', marbles):
        is_beside = found[0] == "|" and marbles[: found.start()][-1:] not in ("-", "")
        at = at if is_beside else found.start()
        yield from ((at, word) for word in (found[0],) if not found[1])
        yield from ((at, word) for word in (found[1] or "").split(",") if found[1])


def played(make: Callable[..., Any], sources: list[str], words: dict[str, Any]) -> list[tuple[int, str]]:
    scheduler = TestScheduler()

    def cold(marbles: str) -> Observable[Any]:
        kinds = {"|": lambda at, _: ReactiveTest.on_completed(at), "X": ReactiveTest.on_error}
        signals = tokens(marbles.strip().removesuffix("-!"))
        notes = [kinds.get(word, ReactiveTest.on_next)(at, words.get(word, word)) for at, word in signals]
        return scheduler.create_cold_observable(notes)

    emitted = record(scheduler, lambda: make(*map(cold, sources)))
    ends = {"end": "|", "error": "X"}
    return [(at, ends.get(kind) or said(item, words)) for at, kind, item in emitted]


def said(item: Any, words: dict[str, Any]) -> str:
    if isinstance(item, Labelled):
        return item.label + ("X" if isinstance(item.item, ErrorEvent) else said(item.item, words))
    same = (word for word, value in words.items() if value == item and type(value) is type(item))
    return next(same, None) or SAID.get(type(item), repr)(item)


@pytest.mark.parametrize("name", PLAYED)
def test_what_a_docstring_shows_is_what_happens(name: str) -> None:
    make, more = PLAYED[name]
    words = {**WORDS, **more}
    rows = [marbles for _, marbles in lines(name) if "-" in marbles]
    pairs = [rows[:2], rows[2:]] if name == "verify" else [rows]
    for *sources, shown in pairs:
        wanted = [(at, word.strip('"')) for at, word in tokens(shown)]
        assert [(at, word.strip('"')) for at, word in played(make, sources, words)] == wanted
