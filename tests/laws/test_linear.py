"""The work grows with the number of calls, blocks, steps and sources, and not with its square.

No clock is asked: the lines that run are counted, and the comparisons of names, which a search through a list would
repeat.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pytest
from reactivex import Observable, from_iterable, never

import rxllm
from rxllm import Engine, Fake, Tool, ToolCall, serializer, session, validate
from rxllm import operators as ops
from rxllm.chunks import ChunkAccumulator, ChunkFeeder, StreamChunk
from rxllm.collector import StreamCollector, fold_message
from rxllm.events import (
    ChatCompleted,
    Event,
    MessageCompleted,
    MessageStarted,
    StepCompleted,
    TextCompleted,
    TextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolResultEncoded,
)
from rxllm.values import (
    ChatResult,
    Message,
    Request,
    Response,
    Session,
    StepResult,
    Thread,
    Usage,
    unanswered,
    with_results,
)
from rxllm.wire import tool_calls
from rxllm.wire.tool_calls import CallTracker

SMALL, LARGE = 60, 360


class Name(str):
    """A string whose comparisons are counted."""

    __slots__ = ()
    compared: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other) if isinstance(other, str) else False

    __hash__ = str.__hash__


def work(run: Callable[[], Any]) -> tuple[int, int]:
    """How many lines of Python `run` runs on this thread, and how many names it compares."""
    count = 0

    def count_one(frame: object, what: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return count_one

    others = sys.gettrace()
    before = Name.compared
    sys.settrace(count_one)
    try:
        run()
    finally:
        sys.settrace(others)
    return count, Name.compared - before


def wait(source: Observable[Any]) -> Any:
    """The last item of `source`, all of whose work is done on this thread."""

    async def last() -> Any:
        async with asyncio.timeout(120):
            return await source

    return asyncio.run(last())


def ids(n: int, prefix: str = "c") -> list[Name]:
    return [Name(f"{prefix}{i}") for i in range(n)]


def calls(n: int) -> list[ToolCall]:
    return [ToolCall(id, "f", {"x": 1}) for id in ids(n)]


def ended(events: list[Event]) -> list[Event]:
    message = fold_message(events)
    return [*events, MessageCompleted(message, "tool_calls" if message.tool_calls else "stop")]


def started(*events: Event) -> list[Event]:
    return [MessageStarted(Message("assistant")), *events]


def of_calls(n: int) -> list[Event]:
    def events(id: str) -> tuple[Event, ...]:
        return ToolCallStarted(id, "f"), ToolCallDelta(id, "{}"), ToolCallCompleted(id, "f", {}, "{}")

    return ended(started(*(event for id in ids(n) for event in events(id))))


def in_one_delta(text: str, n: int) -> list[Event]:
    return ended(started(TextDelta(f"One.{text * n}Two.", "b"), TextCompleted(f"One.{text * n}Two.", "b")))


def of_open_blocks(n: int) -> list[Event]:
    """Blocks that are all open at once; the first to begin is the last to end."""
    blocks = ids(n, "b")
    ends = (TextCompleted("a", id) for id in reversed(blocks))
    return ended(started(*(TextDelta("a", id) for id in blocks), *ends))


def of_steps(n: int) -> list[Event]:
    events: list[Event] = []
    steps: list[StepResult] = []
    for place in range(n):
        message = Message("assistant", f"answer {place}")
        thread = Thread((Message("user", str(place)), message))
        steps.append(StepResult(thread, Response(message, message.text), done=True))
        events += [*started(), MessageCompleted(message, "stop"), StepCompleted(steps[-1])]
    return [*events, ChatCompleted(ChatResult(steps[-1].thread, steps[-1].response, tuple(steps)))]


def thread_of(n: int) -> Thread:
    return Thread(tuple(Message("assistant", tool_calls=(call,)) for call in calls(n)))


async def run_one(arguments: object) -> int:
    return 1


PLAIN = Tool("f", handler=run_one)
EAGER = Tool("f", handler=run_one, eager=True)
MANUAL = Tool("f", manual=True)
APPROVAL = Tool("f", handler=run_one, approval=True)


def through(events: list[Event], *operators: Any) -> Callable[[], Any]:
    def run() -> None:
        errors: list[Exception] = []
        from_iterable(events).pipe(*operators).subscribe(on_error=errors.append)
        assert not errors

    return run


def chat(n: int, tool: Tool) -> Callable[[], Any]:
    return lambda: wait(rxllm.chat(Fake(calls(n), "done"), "Hi", tools=[tool]))


def halted(n: int, tool: Tool) -> ChatResult:
    return wait(rxllm.chat(Fake(calls(n), "done"), "Hi", tools=[tool]))


def resumed(n: int, tool: Tool, **answers: Any) -> Callable[[], Any]:
    result = halted(n, tool)
    return lambda: wait(rxllm.resume(Fake("done"), result, tools=[tool], **answers))


def refused(run: Callable[[], Any]) -> Callable[[], Any]:
    def refuse() -> None:
        with pytest.raises(rxllm.LLMError):
            run()

    return refuse


def waiting(n: int) -> Session:
    pending = tuple(calls(n))
    thread = Thread((Message("assistant", tool_calls=pending),))
    return Session(thread=thread, status="awaiting_tools", pending_tool_calls=pending)


def agents(n: int) -> Engine:
    """An engine whose model calls an agent `n` times, and each agent a tool that its caller runs."""
    agent = Engine(Fake(lambda request: ToolCall("x", "f")), tools=[MANUAL]).as_tool(name="f")
    made = [ToolCall(id, "f", {"prompt": "Hi"}) for id in ids(n)]
    return Engine(Fake(lambda request: made if request.messages[-1].role == "user" else "Done."), tools=[agent])


def waiting_agents(n: int) -> Session:
    return wait(session.start(agents(n), "Hi")).session


def resumed_agents(n: int) -> Callable[[], Any]:
    engine, halted = agents(n), waiting_agents(n)
    denied = dict.fromkeys(ids(n), False)
    return lambda: wait(rxllm.resume(engine, halted.thread, approvals=denied))


def resumed_session(waiting: Session, results: dict[str, str]) -> None:
    wait(session.resume(Fake("done"), waiting, results=results, tools=[MANUAL]))


def fold(events: list[Event], project: Callable[[StreamCollector], Any]) -> None:
    state = StreamCollector(Thread())
    for event in events:
        state = state.apply_event(event)
    project(state)


def tracked(n: int, *, index: int | None, id: str | None, name: str | None, piece: str) -> Callable[[], Any]:
    def run() -> None:
        tracker = CallTracker(f"call_{i}" for i in range(n, 2 * n))
        for k in range(n):
            tracker.feed(k if index is None else index, id, name, piece)
        tracker.close()

    return run


def accumulated(n: int, chunk: Callable[[int], StreamChunk]) -> Callable[[], Any]:
    def run() -> None:
        feeder, accumulator = ChunkFeeder(), ChunkAccumulator()
        for i in range(n):
            feeder.feed(chunk(i))
            accumulator = accumulator.push(chunk(i))
        feeder.close()
        accumulator.finalize_message(), accumulator.finalize_annotations()

    return run


def cited(i: int) -> StreamChunk:
    return StreamChunk("meta", metadata={"annotations": [{"url": Name(f"https://a.example/{i}")}]})


def called(i: int) -> StreamChunk:
    return StreamChunk("tool_call", name="f", arguments={"x": 1}, metadata={"index": i})


def unknown_parts(n: int) -> Callable[[], Any]:
    parts = [{"odd": place} for place in range(2 * n)]  # enough brackets that the depth is counted at either size
    frame = b"data: " + json.dumps({"candidates": [{"content": {"parts": parts}}]}).encode() + b"\n\n"
    decoder = rxllm.Gemini(api_key="k").decoder(rxllm.request("Hi"))

    def run() -> None:
        assert len([*decoder.feed(frame), *decoder.close()]) < 10

    return run


def limited(n: int) -> Callable[[], Any]:
    def run() -> None:
        source = never().pipe(ops.rate_limited(concurrent=1))
        for subscription in reversed([source.subscribe() for _ in range(n)]):
            subscription.dispose()

    return run


def merged(n: int) -> Callable[[], Any]:
    streams = {f"s{i}": rxllm.stream_generate(Fake("a"), "Hi") for i in range(n)}
    return lambda: wait(rxllm.merge_labelled(streams))


@dataclass
class Note:
    text: str
    tags: list[str]


def of_json(n: int, *deltas: str, before: str = "", after: str = "") -> list[Event]:
    """The events of an answer with `deltas` `n` times in it."""
    texts = [before, *(delta for _ in range(n) for delta in deltas), after]
    return [*started(), *map(TextDelta, texts)]


def looked_at(n: int, *deltas: str, **around: str) -> Callable[[], Any]:
    """Partials of a list of notes, of each of which the newest part is looked at."""

    def run() -> None:
        source = from_iterable(of_json(n, *deltas, **around)).pipe(ops.partials(list[Note]))
        source.subscribe(lambda notes: (notes[-1]["text"].state, len(notes)), lambda error: None)

    return run


NOTE = ('{"text": "', "on", 'e", "tags": ', '["a", "b"]', "}, ")

CASES: dict[str, Callable[[int], Callable[[], Any]]] = {
    "notes of a partial list": lambda n: looked_at(n, *NOTE, before="[", after="{}]"),
    "pieces of one partial text": lambda n: looked_at(n, "word ", before='[{"text": "'),
    "spaces before a partial": lambda n: looked_at(n, " \n", before="```json", after="[]"),
    "the depth of a partial": lambda n: looked_at(n, "[", before='[{"tags": '),
    "keys of a partial object": lambda n: looked_at(n, '"a": ["b"], ', before="[{"),
    "text at a path": lambda n: through(of_json(n, *NOTE, before="[", after="{}]"), ops.text_at("*", "tags", "*")),
    "calls that run": lambda n: chat(n, PLAIN),
    "calls that start early": lambda n: chat(n, EAGER),
    "calls of manual tools": lambda n: chat(n, MANUAL),
    "calls that wait for an approval": lambda n: chat(n, APPROVAL),
    "calls of as many tools": lambda n: (
        lambda: wait(
            rxllm.chat(
                Fake([ToolCall(f"c{i}", f"f{i}") for i in range(n)], "done"),
                "Hi",
                tools=[Tool(Name(f"f{i}"), handler=run_one) for i in range(n)],
            )
        )
    ),
    "results in resume": lambda n: resumed(n, MANUAL, results=dict.fromkeys(ids(n), "1")),
    "denials in resume": lambda n: resumed(n, APPROVAL, approvals=dict.fromkeys(ids(n), False)),
    "unknown answers in resume": lambda n: refused(resumed(n, MANUAL, results=dict.fromkeys(ids(n, "x"), "1"))),
    "submitted results": lambda n: partial(waiting(n).submit_tool_results, dict.fromkeys(ids(n), "1")),
    "unknown submitted results": lambda n: refused(
        partial(waiting(n).submit_tool_results, dict.fromkeys(ids(n, "x"), "1"))
    ),
    "a session's results": lambda n: partial(resumed_session, waiting(n), dict.fromkeys(ids(n), "1")),
    "agents that halt": lambda n: partial(waiting_agents, n),
    "agents that are denied": resumed_agents,
    "submitted results of agents": lambda n: partial(
        waiting_agents(n).submit_tool_results, {f"{id}/x": "1" for id in ids(n)}
    ),
    "the messages of a thread": lambda n: partial(unanswered, thread_of(n)),
    "results put into a thread": lambda n: partial(
        with_results, thread_of(n), {id: Message("tool", "1", tool_call_id=id) for id in ids(n)}
    ),
    "calls and results folded": lambda n: partial(
        fold, [*of_calls(n), *(ToolResultEncoded(id, "1") for id in ids(n))], StreamCollector.to_step_result
    ),
    "open blocks folded": lambda n: partial(fold, of_open_blocks(n), StreamCollector.to_response),
    "open blocks as text": lambda n: through(of_open_blocks(n), ops.text()),
    "line breaks in one delta": lambda n: through(in_one_delta("\n", n), ops.sentences()),
    "matches in one delta": lambda n: through(in_one_delta("secret ", n), ops.redact("secret")),
    "initials in one delta": lambda n: through(in_one_delta("A. ", n), ops.sentences()),
    "words in one delta": lambda n: through(in_one_delta("on ", n), ops.words()),
    "calls verified": lambda n: through(of_calls(n), ops.verify()),
    "steps verified": lambda n: through(of_steps(n), ops.verify()),
    "steps folded": lambda n: partial(fold, of_steps(n), StreamCollector.to_chat_result),
    "tools of a request": lambda n: partial(
        validate.request, Request((Message("user", "Hi"),), tools=tuple(map(Tool, ids(n, "f"))))
    ),
    "calls without ids": lambda n: tracked(n, index=None, id=None, name="f", piece="{}"),
    "calls of one id": lambda n: tracked(n, index=None, id="call_0", name="f", piece="{}"),
    "unknown parts of one Gemini frame": unknown_parts,
    "chunks with citations": lambda n: accumulated(n, cited),
    "chunks with calls": lambda n: accumulated(n, called),
    "streams merged": merged,
    "subscriptions that wait": limited,
    "values read": lambda n: partial(serializer.from_json, serializer.to_json(thread_of(n))),
    "values written": lambda n: partial(serializer.to_json, thread_of(n)),
}


SLOW = {"agents that halt", "agents that are denied", "submitted results of agents"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.judges) if name in SLOW else name for name in CASES]
)
def test_the_work_is_linear_in(name: str) -> None:
    make = CASES[name]
    make(2)()  # what is done once: imports, caches
    small, large = work(make(SMALL)), work(make(LARGE))
    assert large[0] <= 1.25 * LARGE / SMALL * small[0]
    assert large[1] <= 1.25 * LARGE / SMALL * max(small[1], SMALL)


def test_a_chat_adds_the_usage_of_each_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    added = 0
    add = Usage.__add__

    def counting(usage: Usage, other: Usage) -> Usage:
        nonlocal added
        added += 1
        return add(usage, other)

    monkeypatch.setattr(Usage, "__add__", counting)
    turns = [[Usage(1, 1), call] for call in calls(50)]
    wait(rxllm.chat(Fake(*turns, "done"), "Hi", tools=[PLAIN], max_turns=60))
    assert added <= 3 * 51


def test_arguments_are_not_parsed_again_with_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = tool_calls.read_arguments
    monkeypatch.setattr(tool_calls, "read_arguments", lambda raw: parse(parsed.append(raw) or raw))
    tracker = CallTracker()
    for piece in ('{"a": "', *"}" * 100, '"}'):
        tracker.feed(None, None, "f", piece)  # some servers say the name each time
    assert tracker.close()[-1].arguments == {"a": "}" * 100}
    assert len(parsed) <= 2
