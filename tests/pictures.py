"""A scenario for each operator, run in virtual time: its picture in ``docs/marbles``, which docs/operators.md shows.

``python -m tests.operators_page`` draws them. An operator without a scenario fails a test by its name; it needs one
entry in `SCENARIOS`: a source, and the stages by their labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import reactivex
from reactivex import Observable, abc
from reactivex import operators as rx
from reactivex.disposable import CompositeDisposable
from reactivex.subject import ReplaySubject

import rxllm
from rxllm import AdapterError, Fake, RetryPolicy, Session, StreamError, ToolCall, Usage, stream_generate, tool
from rxllm import operators as ops
from rxllm.display import MarbleDiagram, marble_diagram
from rxllm.events import Event, MessageStarted, TextCompleted, TextDelta
from rxllm.runtime import Gate, Stream
from rxllm.runtime.back_pressure import read_by
from rxllm.testing.marbles import parse
from rxllm.values import Thread, assistant, user
from tests.operators.journal import MemoryJournal

FOLDER = Path(__file__).parent.parent / "docs" / "marbles"

DOWN, CUT = AdapterError("provider_unavailable"), StreamError("truncated")
THREAD = Thread((user("Six times seven?"),))
CALL = ToolCall("c1", "multiply", {"a": 6, "b": 7})
NOW = RetryPolicy(base_delay=0.0, jitter=0.0)

Scenario = Callable[[], MarbleDiagram]


def answer(*script: Any) -> Stream[Event]:
    """The events of a model that says `script`; a number in it is a pause in seconds."""
    return stream_generate(_model(*script), "Hi", retry=False)


def answers(*scripts: list[Any]) -> Stream[Event]:
    """The same, with another script for each call."""
    model = Fake(scripts=[_pieces(script) for script in scripts])
    return stream_generate(model, "Hi", retry=False)


def plays(marbles: str, **values: Any) -> Observable[Any]:
    """A source of plain items, as ``rxllm.testing.marbles`` writes them."""

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        def play(kind: str, value: Any, *_: object) -> None:
            if kind == "next":
                observer.on_next(value)
            else:
                observer.on_completed() if kind == "end" else observer.on_error(value)

        assert scheduler is not None
        notes = parse(marbles, values)
        return CompositeDisposable(
            *(scheduler.schedule_relative(tick, partial(play, kind, value)) for tick, kind, value in notes)
        )

    return Observable(subscribe)


def draw(source: Any, stages: Mapping[str, Callable[..., Any]], *, at: Sequence[float] = ()) -> MarbleDiagram:
    """Draw `source` and each stage by its label. The output is subscribed to `at` these times, and else once."""
    names = list(source) if isinstance(source, Mapping) else ["source"]
    reader, name = ([subscribed_at(*at)], ["reader"]) if at else ([], [])
    diagram = marble_diagram(source, *stages.values(), *reader, labels=[*names, *stages, *name], virtual=True)
    if at:
        diagram._lanes.pop()  # what all readers receive together
    return diagram


def draw_calls(
    source: Observable[Any], label: str, operator: Callable[[Callable[..., None]], Any], **after: Any
) -> MarbleDiagram:
    """Draw an operator that takes a function, and what it calls the function `fn` with."""
    calls = ReplaySubject[Any]()  # the first call may be made before the lane of `fn` is subscribed to

    def fn(*arguments: Any) -> None:
        calls.on_next(arguments[0] if len(arguments) == 1 else arguments)

    def stage(streams: Mapping[str, Observable[Any]]) -> Observable[Any]:
        output = streams["source"].pipe(operator(fn), rx.finally_action(calls.on_completed))
        return reactivex.merge(output, streams["fn"].pipe(rx.ignore_elements()))

    diagram = draw({"source": source, "fn": calls}, {label: stage, **after})
    diagram._lanes.append(diagram._lanes.pop(1))
    return diagram


def subscribed_at(*seconds: float) -> Callable[[Observable[Any]], Observable[Any]]:
    """Subscribe then, and ignore errors, which are drawn in the lane above."""
    return lambda source: reactivex.merge(
        *(reactivex.timer(at).pipe(rx.flat_map(source.pipe(ops.errors_as_events()))) for at in seconds)
    )


def read_every(seconds: float) -> Callable[[Observable[Any]], Observable[Any]]:
    """Take one item in so many seconds, as an iterator does whose loop has work to do."""

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> Any:
            gate = Gate(64)
            asks = ended = False

            def take(_: object = None) -> None:
                nonlocal asks
                asks = not gate.waiting
                if gate.waiting:
                    observer.on_next(gate.take())
                elif ended:
                    observer.on_completed()
                else:
                    gate.request()

            def add(item: Any) -> None:
                gate.waiting.append(item)
                if asks:
                    take()

            def end() -> None:
                nonlocal ended
                ended = True
                if asks:
                    take()

            with read_by(gate, lambda error: False):
                source.subscribe(add, observer.on_error, end, scheduler=scheduler)
            return reactivex.timer(2.0, seconds).subscribe(take, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def _model(*script: Any) -> Fake:
    return Fake(_pieces(list(script)))


def _pieces(script: list[Any]) -> list[Any]:
    return [("delay", float(piece)) if isinstance(piece, int | float) else piece for piece in script]


@tool
def multiply(a: int, b: int) -> int:
    """Multiply."""
    return a * b


def step_of(*script: Any) -> Callable[[Thread], Stream[Event]]:
    return lambda thread: stream_generate(_model(*script), thread, retry=False).pipe(
        ops.run_tools([multiply], thread=thread)
    )


def look_up(item: str) -> Observable[str]:
    """Take five seconds for "a", and two for any other item."""
    return reactivex.timer(5.0 if item == "a" else 2.0).pipe(rx.map(lambda _: item.upper()))


class Pairs:
    """Feeds pairs of items."""

    def __init__(self) -> None:
        self.waiting: list[str] = []

    def feed(self, item: str) -> list[str]:
        self.waiting.append(item)
        return self.close() if len(self.waiting) == 2 else []

    def close(self) -> list[str]:
        pair, self.waiting = "".join(self.waiting), []
        return [pair] if pair else []


class KeptJournal(MemoryJournal):
    """Answers each run from the entries of the runs before it."""

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        run = MemoryJournal(self.entries)
        run.entries = self.entries
        return run.response(path, key, events)


SCENARIOS: dict[str, Scenario] = {
    "budget": lambda: draw(
        answer(1, "Once ", 1, "upon ", 1, "a ", 1, "time"), {"budget(tokens=2)": ops.budget(tokens=2)}
    ),
    "circuit_breaker": lambda: draw(
        answers([0.5, DOWN], [0.5, DOWN], [0.5, "Hi"], [0.5, "Hi"]),
        {"circuit_breaker(2, cooldown=4)": ops.circuit_breaker(2, cooldown=4.0)},
        at=(0, 1, 2, 3, 6, 7),
    ),
    "conflate": lambda: draw(
        answer(1, "H", 1, "e", 1, "l", 1, "l", 1, "o"),
        {"conflate()": ops.conflate(), "read every 2 s": read_every(2.0)},
    ),
    "continue_with": lambda: draw(
        {"source": plays("-a|"), "fn('a')": plays("--b|")},
        {
            "continue_with(fn)": lambda streams: streams["source"].pipe(
                ops.continue_with(lambda last: streams["fn('a')"] if last == "a" else None)
            )
        },
    ),
    "cost": lambda: draw(
        answer(1, "Hi", 1, Usage(3, 1)),
        {"cost(price=fn)": ops.cost(price=lambda usage: replace(usage, total_cost=0.1))},
    ),
    "errors_as_events": lambda: draw(plays("-a-b-X", X=CUT), {"errors_as_events()": ops.errors_as_events()}),
    "fallback": lambda: draw(
        {"source": answer(2, DOWN), "second": answer(1, "Hi", 1)},
        {"fallback(second)": lambda streams: streams["source"].pipe(ops.fallback(streams["second"]))},
    ),
    "filter_deltas": lambda: draw(
        answer(1, ("thinking", "Hm"), 1, ("thinking", ", hi?"), 1, "Hel", 1, "lo", 1),
        {"filter_deltas(thinking=False)": ops.filter_deltas(thinking=False)},
    ),
    "finally_result": lambda: draw_calls(
        answer(1, "Hel", 1, "lo", 1), "finally_result(fn)", ops.finally_result, **{"take(3)": rx.take(3)}
    ),
    "gate": lambda: draw(
        {"source": plays("--a-b-c-d-e-|"), "is_open": plays("T----F---T", T=True, F=False)},
        {"gate(is_open)": lambda streams: streams["source"].pipe(ops.gate(streams["is_open"]))},
    ),
    "guard": lambda: draw(
        answer(1, "I know. ", 1, "The code ", 1, "is 4711. ", 1, "Use it!", 1),
        {"guard(check)": ops.guard(lambda text: reactivex.timer(0.5).map(lambda _: "4711" not in text))},
    ),
    "hedge": lambda: draw(answers([5, "slow"], [1, "Hel", 1, "lo", 1]), {"hedge(after=2)": ops.hedge(2.0)}),
    "include_raw_chunks": lambda: draw(
        stream_generate(
            _model(1, ("raw_chunk", {"x": 1}), "H", 1, ("raw_chunk", {"x": 2}), "i", 1),
            "Hi",
            include_raw_chunks=True,
            retry=False,
        ),
        {"include_raw_chunks()": ops.include_raw_chunks()},
    ),
    "items": lambda: draw(answer(1, '["Lima", "Os', 2, 'lo", "Bon', 2, 'n"]', 1), {"items(str)": ops.items(str)}),
    "journaled": lambda: draw(
        answer(1, "Hel", 1, "lo", 1), {"journaled(journal)": ops.journaled(KeptJournal())}, at=(0, 5)
    ),
    "keep_latest": lambda: draw(
        plays("-a-b-c-d-e-f-|"), {"keep_latest()": ops.keep_latest(), "read every 4 s": read_every(4.0)}
    ),
    "lift": lambda: draw(plays("-a-b-c-|"), {"lift(Pairs)": ops.lift(Pairs)}),
    "map_async": lambda: draw(plays("-a-b-c-|"), {"map_async(look_up)": ops.map_async(look_up)}),
    "map_text": lambda: draw(answer(1, "Hel", 1, "lo", 1), {"map_text(str.upper)": ops.map_text(str.upper)}),
    "merge_labelled": lambda: draw(
        {"a": plays("-1---2-|"), "b": plays("--3-X", X=DOWN)},
        {'merge_labelled({"a": a, "b": b})': rxllm.merge_labelled},
    ),
    "only": lambda: draw(answer(1, ("thinking", "Hm"), 1, "Hel", 1, "lo", 1), {"only(TextDelta)": ops.only(TextDelta)}),
    "parsed": lambda: draw(answer(1, '["Lima", ', 1, '"Oslo"]', 1), {"parsed(list[str])": ops.parsed(list[str])}),
    "partials": lambda: draw(
        answer(1, '{"city": "Li', 2, 'ma"', 2, "}", 1), {"partials(dict)": ops.partials(dict[str, Any])}
    ),
    "race": lambda: draw(
        {"source": answer(3, "slow"), "b": answer(2, "Hel", 1, "lo", 1), "c": answer(1, DOWN)},
        {"race(b, c)": lambda streams: streams["source"].pipe(ops.race(streams["b"], streams["c"]))},
    ),
    "raise_errors": lambda: draw(answer(1, "Hel", 1, "lo", 1, CUT), {"raise_errors()": ops.raise_errors()}),
    "rate_limited": lambda: draw(
        answer(1, "H", 1, "i", 1), {"rate_limited(concurrent=2)": ops.rate_limited(concurrent=2)}, at=(0, 1, 2)
    ),
    "redact": lambda: draw(
        answer(1, "key sk-", 1, "123", 1, ", ok?", 1), {r'redact(r"sk-\w+")': ops.redact(r"sk-\w+")}
    ),
    "repeat_until_halt": lambda: draw(
        {"source": step_of(1, CALL)(THREAD), "ask(thread)": step_of(1, "42.", 1)(THREAD)},
        {
            "repeat_until_halt(ask)": lambda streams: streams["source"].pipe(
                ops.repeat_until_halt(lambda thread: streams["ask(thread)"])
            )
        },
    ),
    "restart": lambda: draw(answers([1, "Hel", 1, CUT], [1, "Hel", 1, "lo", 1]), {"restart()": ops.restart(NOW)}),
    "retry_before_content": lambda: draw(
        answers([1, DOWN], [1, "Hel", 1, "lo", 1]), {"retry_before_content()": ops.retry_before_content(NOW)}
    ),
    "run_tools": lambda: draw(answer(1, CALL, 1), {"run_tools([multiply])": ops.run_tools([multiply], thread=THREAD)}),
    "scan_collect": lambda: draw(
        answer(1, "Hel", 2, "lo", 2),
        {
            "scan_collect().map(lambda state: state.current_text)": lambda source: Stream.of(
                source.pipe(ops.scan_collect())
            ).map(lambda state: state.current_text)
        },
    ),
    "sentences": lambda: draw(answer(1, "Hi. ", 1, "How ", 1, "are you?", 1), {"sentences()": ops.sentences()}),
    "share_folded": lambda: draw(
        answer(1, "Hel", 1, "lo ", 2, "you", 1), {"share_folded(grace=5)": ops.share_folded(5.0)}, at=(0, 3)
    ),
    "smooth": lambda: draw(answer(1, "One two three ", 2, "four five six", 2), {"smooth(max_lag=1)": ops.smooth(1.0)}),
    "snapshots": lambda: draw(
        answer(1, "H", 1, "e", 1, "y", 4, "!", 1),
        {
            "snapshots(every=2).map(lambda response: response.output_text)": lambda source: Stream.of(
                source.pipe(ops.snapshots(2.0))
            ).map(lambda response: response.output_text)
        },
    ),
    "stall_warning": lambda: draw_calls(
        answer(1, "Hel", 5, "lo", 1), "stall_warning(3, fn)", lambda fn: ops.stall_warning(3.0, fn)
    ),
    "tap": lambda: draw_calls(answer(1, "Hel", 1, "lo", 1), "tap(fn, TextDelta)", lambda fn: ops.tap(fn, TextDelta)),
    "text": lambda: draw(answer(1, "Hel", 1, "lo", 1), {"text()": ops.text()}),
    "text_at": lambda: draw(
        answer(1, '[{"name": "Li', 2, 'ma"}, {"name', 2, '": "Oslo"}]', 1),
        {
            'text_at("*", "name").map(lambda piece: piece.text)': lambda source: Stream.of(
                source.pipe(ops.text_at("*", "name"))
            ).map(lambda piece: piece.text)
        },
    ),
    "thinking": lambda: draw(
        answer(1, ("thinking", "hm"), 1, ("thinking", "!"), 1, "Hi", 1), {"thinking()": ops.thinking()}
    ),
    "time_limits": lambda: draw(answer(1, "Hel", 1, "lo", 9, "!"), {"time_limits(idle=3)": ops.time_limits(idle=3.0)}),
    "to_chat_result": lambda: draw(
        step_of(1, CALL)(THREAD).pipe(ops.repeat_until_halt(step_of(1, "42.", 1))),
        {"to_chat_result()": ops.to_chat_result()},
    ),
    "to_response": lambda: draw(answer(1, "Hel", 1, "lo", 1), {"to_response()": ops.to_response()}),
    "to_session": lambda: draw(
        rxllm.stream(_model(1, "Hel", 1, "lo", 1), "Hi"), {"to_session(Session())": ops.to_session(Session())}
    ),
    "to_step_result": lambda: draw(step_of(1, "4", 1, "2", 1)(THREAD), {"to_step_result()": ops.to_step_result()}),
    "to_text": lambda: draw(answer(1, "Hel", 1, "lo", 1), {"to_text()": ops.to_text()}),
    "tool_calls": lambda: draw(answer(1, "Hm.", 1, CALL, 1), {"tool_calls()": ops.tool_calls()}),
    "timed": lambda: draw(plays("-a-b-|"), {"timed()": ops.timed()}),
    "trace": lambda: draw_calls(
        plays("-a-b-|"),
        "trace(lambda trace: fn(trace.kind))",
        lambda fn: ops.trace(lambda trace: fn(trace.kind)),
    ),
    "usage": lambda: draw(answer(1, "Hi", 1, Usage(3, 1), 1, Usage(3, 5), 1), {"usage()": ops.usage()}),
    "verify": lambda: draw(
        plays("-s-H-i-e|", s=MessageStarted(assistant("")), H=TextDelta("H"), i=TextDelta("i"), e=TextCompleted("Ho")),
        {"verify()": ops.verify()},
    ),
    "words": lambda: draw(answer(1, "Hel", 1, "lo wo", 1, "rld", 1), {"words()": ops.words()}),
}


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.svg"):
        file.unlink()
    for name, scenario in SCENARIOS.items():
        scenario().svg(FOLDER / f"{name}.svg")
