"""The marbles in an operator's docstring: its source is played in virtual time, and what comes out is what stands there.

A word is one item; it stands where it comes, and what is in brackets comes at once. What a word means is in `WORDS`, or
beside the operator.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import reactivex
from reactivex import Observable
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import StreamError, Usage
from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    TextCompleted,
    TextDelta,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.testing.marbles import record
from rxllm.values import assistant
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

TEXT = {f'"{text}"': TextDelta(text) for text in ("my key is sk-", "12345", ", ok?")}
CALL = {
    "c1": ToolCallStarted("c1", "add"),
    "{..}": ToolCallDelta("c1", '{"a":1}'),
    "c1.done": ToolCallCompleted("c1", "add", {"a": 1}, '{"a":1}'),
}

CITY = {text: TextDelta(text) for text in ('{"na', 'me": "Lima"}', '{"name": "Li', 'ma", "tags": [', '"old"]}')}


def piped(make: Callable[[], Any]) -> Callable[..., Any]:
    return lambda source: source.pipe(make())


def again(make: Callable[[], Any]) -> Callable[..., Any]:
    """The first line is what the source does, the second what it does when it is subscribed once more."""

    def applied(*sources: Observable[Any]) -> Observable[Any]:
        following = iter(sources)
        return reactivex.defer(lambda _: next(following)).pipe(make())

    return applied


PLAYED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "budget": (piped(lambda: ops.budget(tokens=1)), {letter: TextDelta(letter) for letter in "Helo"}),
    "checkpoint": (piped(lambda: ops.checkpoint("in")), {}),
    "continue_with": (
        piped(lambda: ops.continue_with(lambda last: plays(f"---{int(last) + 1}|") if last < "3" else None)),
        {},
    ),
    "count": (piped(lambda: ops.count(lambda counts: None)), {}),
    "errors_as_events": (piped(ops.errors_as_events), {}),
    "fallback": (lambda source, second: source.pipe(ops.fallback(second)), {}),
    "filter_deltas": (piped(lambda: ops.filter_deltas(text=False)), {}),
    "hedge": (again(lambda: lambda source: ops.hedge(source, after=10.0)), {}),
    "include_raw_chunks": (piped(ops.include_raw_chunks), {}),
    "lift": (piped(lambda: ops.lift(Pairs)), {}),
    "map_text": (piped(lambda: ops.map_text(str.upper)), {}),
    "merge_labelled": (lambda a, b: ops.merge_labelled({"a": a, "b": b}), {}),
    "only": (piped(lambda: ops.only(TextDelta)), {}),
    "parsed": (piped(lambda: ops.parsed(dict[str, str])), CITY),
    "partial_json": (piped(ops.partial_json), CITY),
    "race": (ops.race, {"A": TextDelta("A"), "B": TextDelta("B")}),
    "raise_errors": (piped(ops.raise_errors), {}),
    "redact": (piped(lambda: ops.redact(r"sk-\w+")), TEXT),
    "restart": (again(lambda: ops.restart(NOW)), {}),
    "retry_before_content": (again(lambda: ops.retry_before_content(NOW)), {}),
    "scan_collect": (piped(lambda: ops.scan_collect()), {}),
    "sentences": (piped(ops.sentences), {text: TextDelta(text) for text in ("Hi. ", "How ", "are you?")}),
    "smooth": (piped(ops.smooth), {"ABCD": TextDelta("A B C D "), "EFGH": TextDelta("E F G H")}),
    "snapshots": (piped(lambda: ops.snapshots(4.0)), {}),
    "stall_warning": (piped(lambda: ops.stall_warning(5, lambda seconds, events: None)), {}),
    "tap": (piped(lambda: ops.tap(print)), {}),
    "text": (piped(ops.text), {}),
    "thinking": (piped(ops.thinking), {"Hi": TextDelta("Hi")}),
    "timeouts": (piped(lambda: ops.timeouts(idle=10.0)), {"ping": RawChunk("ping", {})}),
    "to_response": (piped(ops.to_response), {}),
    "to_text": (piped(ops.to_text), {}),
    "tool_calls": (piped(ops.tool_calls), CALL),
    "trace": (piped(lambda: ops.trace(lambda trace: None)), {}),
    "usage": (
        piped(ops.usage),
        {"3": UsageUpdated(Usage(3)), "5": UsageUpdated(Usage(5)), "4": UsageUpdated(Usage(4))},
    ),
    "verify": (piped(ops.verify), {}),
    "words": (piped(ops.words), {text: TextDelta(text) for text in ("Hel", "lo Wo", "rld")}),
}


def lines(name: str) -> list[tuple[str, str]]:
    """The label and the marbles of each line of the picture."""
    found = re.search(r"::\n\n((?:    .*\n)+)", inspect.getdoc(getattr(ops, name)) or "")
    assert found is not None
    rows = [row[4:].split("   (")[0].rstrip() for row in found[1].splitlines()]
    margin = re.search(r" --", rows[0]).start() + 1
    return [(row[:margin].strip(), row[margin:]) for row in rows]


def tokens(marbles: str) -> Iterator[tuple[int, str]]:
    """Each word with its column; an end right behind a word comes with it."""
    at = 0
    for found in re.finditer(r"\(([^)]*)\)|[^-|()]+|\|", marbles):
        is_beside = found[0] == "|" and marbles[: found.start()][-1:] not in ("-", "")
        at = at if is_beside else found.start()
        yield from ((at, word) for word in (found[1] or found[0]).split(","))


def played(make: Callable[..., Any], sources: list[str], words: dict[str, Any]) -> list[tuple[int, str]]:
    scheduler = TestScheduler()

    def cold(marbles: str) -> Observable[Any]:
        kinds = {"|": lambda at, _: ReactiveTest.on_completed(at), "X": ReactiveTest.on_error}
        notes = [kinds.get(word, ReactiveTest.on_next)(at, words.get(word, word)) for at, word in tokens(marbles)]
        return scheduler.create_cold_observable([note for note in notes if note is not None])

    emitted = record(scheduler, lambda: make(*map(cold, sources)))
    ends = {"end": "|", "error": "X"}
    return [(at, ends.get(kind) or said(item, words)) for at, kind, item in emitted]


def said(item: Any, words: dict[str, Any]) -> str:
    for word, value in words.items():
        if value == item:
            return word
    return item if isinstance(item, str) else getattr(item, "id", None) or type(item).__name__


@pytest.mark.parametrize("name", PLAYED)
def test_what_a_docstring_shows_is_what_happens(name: str) -> None:
    make, more = PLAYED[name]
    words = {**WORDS, **more}
    rows = [marbles for _, marbles in lines(name) if "-" in marbles]
    pairs = [rows[:2], rows[2:]] if name == "verify" else [rows]
    for *sources, shown in pairs:
        wanted = [(at, word.strip('"')) for at, word in tokens(shown)]
        assert [(at, word.strip('"')) for at, word in played(make, sources, words)] == wanted
