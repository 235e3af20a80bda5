"""Real agents on the way to a client: their work survives a reload, and what is theirs alone stays here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from reactivex import Subject, from_iterable

import rxllm
from rxllm import AdapterError, Engine, Event, Fake, Nested, Stream, ToolCall, compact_thread, serializer, tool, web
from rxllm import operators as ops
from rxllm.testing import World, simulate
from rxllm.web._codec import PROTOCOLS

CANARY = "CANARY"
CALL = ToolCall("c1", "agent", {"prompt": "Go"})


@tool
def fail() -> str:
    """Fail."""
    raise RuntimeError(CANARY)


@tool(approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


ERROR = AdapterError("provider_unavailable", CANARY)
COMPACTED = [compact_thread(Fake(f"{CANARY} summary"), at=1, keep=1)]
UNCOMPACTED = [compact_thread(Fake(ERROR), at=1, keep=1, on_error="continue")]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("script", "options"),
    [
        ([ToolCall("c2", "fail"), "Inside."], {}),
        ([ToolCall("c2", "pay")], {}),
        ([ToolCall("c2", "fail"), ERROR], {}),
        ([ToolCall("c2", "fail"), "Inside."], {"prepare": COMPACTED}),
        ([ToolCall("c2", "fail"), "Inside."], {"prepare": UNCOMPACTED}),
    ],
)
def test_nothing_private_of_an_agent_leaves(script: list[Any], options: Any, depth: int) -> None:
    agent = Engine(Fake(*script), **options).as_tool(name="agent", system=CANARY, tools=[fail, pay])
    if depth > 1:
        agent = Engine(Fake(CALL, "Between.")).as_tool(name="agent", system=CANARY, tools=[agent])
    thread = [rxllm.system(CANARY), rxllm.user("Hi")]
    stream = rxllm.stream(Fake(CALL, "Done."), thread, tools=[agent], context={"key": CANARY})

    async def app() -> tuple[list[Event], list[Event]]:
        runs = web.Runs()
        early: list[Event] = []
        late: list[Event] = []
        done = asyncio.Event()
        runs.start("a", stream).subscribe(early.append, on_completed=done.set)
        await done.wait()
        runs.watch("a").subscribe(late.append)  # pyright: ignore[reportOptionalMemberAccess]
        return early, late

    early, late = asyncio.run(app())
    for events in (early, late):
        assert any(isinstance(event, Nested) for event in events)
        assert CANARY not in "".join(map(serializer.to_json, events)) + repr(events)
        assert '"agents"' not in "".join(map(serializer.to_json, events))
    assert early[-1] == late[-1]


def test_a_page_that_is_loaded_again_sees_what_an_agent_has_said_so_far() -> None:
    async def app(world: World) -> list[Event]:
        agent = Engine(Fake(["in", "ner", ("delay", 10), "!"])).as_tool(name="agent", system=CANARY)
        runs = web.Runs()
        runs.start("a", rxllm.stream(Fake(CALL, "Done."), "Hi", tools=[agent]))
        await asyncio.sleep(5)
        seen: list[Event] = []
        runs.watch("a").subscribe(seen.append)  # pyright: ignore[reportOptionalMemberAccess]
        await asyncio.sleep(1)
        so_far = list(seen)
        await asyncio.sleep(20)
        assert isinstance(seen[-1], rxllm.ChatCompleted)
        return so_far

    last = simulate(app, faults=()).value[-1]
    assert isinstance(last, Nested)
    assert (last.path, getattr(last.event, "delta", None)) == (("c1",), "inner")


# Corrections while agents run


def _is_text(event: Event, text: str) -> bool:
    return getattr(event, "delta", "").startswith(text)


MOMENTS: dict[str, Any] = {
    "while the model writes": lambda event: _is_text(event, "I call"),
    "while an agent writes": lambda event: isinstance(event, Nested) and _is_text(event.event, "In"),
    "after the agent": lambda event: isinstance(event, rxllm.ToolExecutionCompleted),
    "while the model answers": lambda event: _is_text(event, "Two"),
    "at the end": lambda event: isinstance(event, rxllm.StepCompleted) and event.result.done,
}


@pytest.mark.parametrize("steers_agent", [False, True])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_correction_beside_a_real_agent_reaches_the_client(moment: str, steers_agent: bool) -> None:
    typed: Subject[str] = Subject()
    inner = Engine(Fake(["Inside. ", "In two. ", ToolCall("c2", "fail")], *["Done inside."] * 3))
    own: dict[str, Any] = {"steer": typed} if steers_agent else {}
    agent = inner.as_tool(name="agent", system=CANARY, tools=[fail], **own)
    model = Fake(["I think. ", "I call. ", CALL], *[["One. ", "Two. ", "Three."]] * 3)
    steer: dict[str, Any] = {} if steers_agent else {"steer": typed}
    moments = iter(["Shorter!", "And kinder!"])

    def correct(event: Event) -> None:
        if MOMENTS[moment](event) and (text := next(moments, None)):
            typed.on_next(text)

    thread = [rxllm.system(CANARY), rxllm.user("Hi")]
    events = list(rxllm.stream(model, thread, tools=[agent], **steer).pipe(ops.tap(correct)))
    list(Stream.of(from_iterable(events)).pipe(ops.verify()))
    served = list(Stream.of(from_iterable(events)).pipe(web.for_client()))
    assert CANARY not in "".join(map(serializer.to_json, served)) + repr(served)
    corrections = [event for event in events if isinstance(getattr(event, "event", event), rxllm.Steered)]
    assert corrections or steers_agent or moment == "at the end"
    assert [event for event in served if event in corrections] == corrections
    for protocol in PROTOCOLS:
        frames = list(Stream.of(from_iterable(served)).pipe(web.encode(protocol)))
        assert list(Stream.of(from_iterable(frames)).pipe(web.decode(protocol))) == served
