"""Play a chat to its end, however often the process that plays it is killed, and judge what has been seen of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rxllm import ChatResult, LLMError, RunError, StreamCollector, serializer
from rxllm.durable import Runs, Store, open_runs
from rxllm.durable.testing import Interposed
from rxllm.events import ChatCompleted, Event, MessageCompleted, StepCompleted, StepRestarted, TextCompleted, TextDelta
from tests.durable.chats import ASK, CHATS, MARK, SECRET, line_of
from tests.durable.kill_points import add, interposed, lines
from tests.waiting import until

LEASE = 0.3
IDEMPOTENT = ("stamp", "approved")


@dataclass
class Outcome:
    """What came of a chat, without what differs from time to time."""

    texts: list[str] = field(default_factory=list)
    reason: str = ""
    error: str = ""
    effects: list[str] = field(default_factory=list)
    questions: int = 0
    usage: Any = None


@dataclass
class Played:
    """A run: the events that were seen over all attachments, and its end."""

    id: str
    events: list[Event]
    result: Any
    error: LLMError | None


async def play(name: str, make_store: Callable[[], Store], killed_at: float | None) -> list[Played]:
    """Play the chat on from wherever it is, and return its runs."""
    chat = CHATS[name]
    factories = {name: chat.build}
    produced = interposed(Interposed(make_store(), before=check_lease))
    open_here = open_runs(produced, factories, flush_after=0.0, lease=LEASE)
    async with open_here as runs, open_runs(make_store(), {}) as watching:
        played: list[Played] = []
        input: dict[str, Any] | None = ASK
        while input is not None:
            id = f"run{len(played)}"
            with suppress(RunError):  # it exists
                await runs.start(name, input, id=id)
            _, run = await asyncio.gather(recover(runs, watching, id, killed_at), watch(watching, id))
            killed_at = None
            played.append(run)
            input = reply(name, run.result)
        return played


def check_lease(method: str, arguments: tuple[Any, ...]) -> None:
    """A lease that is longer than it should be would keep the run from others for as long."""
    if method == "claim":
        same("the lease", arguments[2], LEASE)


async def recover(runs: Runs, watching: Runs, id: str, killed_at: float | None) -> None:
    """Go on with the run once it can be claimed, as a worker does, and note how long that took."""

    async def goes_on() -> bool:
        return id in runs.produced or (await watching.get(id)).ended_at is not None or bool(await runs.recover())

    await until(goes_on)
    if killed_at is not None:
        add("waits", f"{time.monotonic() - killed_at}\n")


async def watch(watching: Runs, id: str) -> Played:
    """Watch a run from where the file of what was seen ends; leave now and then, and come back."""
    name = f"seen-{id}"
    error: LLMError | None = None
    while True:
        before = len(lines(name))
        count = 0
        try:
            async for event in watching.watch(id, after=before):
                add(name, f"{serializer.to_json(event)}\n")
                count += 1
                if count == 40:
                    break
            else:
                break
        except LLMError as failure:
            error = failure
            break
    try:
        result = await watching.result(id)
    except LLMError as failure:
        same("the error", failure, error)
        result = None
    events: list[Event] = [serializer.from_json(line) for line in lines(name)]
    return Played(id, events, result, error)


def reply(name: str, result: Any) -> dict[str, Any] | None:
    """Return the input of the next run, answered as by a person who looks into the files; None at the end."""
    if not isinstance(result, ChatResult) or (not result.pending_tool_calls and result.halted_reason != "ask_user"):
        return None
    chat = CHATS[name]
    approvals: dict[str, Any] = {}
    results: dict[str, Any] = {id: text for id, text in chat.replies.items() if id == result.pending_tool_call_id}
    for call in result.pending_tool_calls:
        line = line_of(call.name, call.arguments)
        if call.id in chat.replies:
            continue
        if not call.metadata.get("interrupted"):
            approvals[call.id] = chat.approvals[call.name]
        elif line in lines("begun"):
            if line not in lines("effects"):
                add("effects", f"{line}\n")  # by hand
            results[call.id] = line
        else:
            approvals[call.id] = chat.approvals.get(call.name, True)
    return {"resume": result, "approvals": approvals, "results": results}


def plain(text: str) -> str:
    return MARK.sub("", text).replace("Slow. ", "")


def outcome(name: str, played: list[Played]) -> Outcome:
    last = played[-1]
    found = Outcome(effects=sorted(lines("effects")), questions=len(lines("questions")) + len(lines("asked")))
    if last.error is not None:
        found.error = str(getattr(last.error, "reason", last.error))
    if isinstance(last.result, ChatResult):
        found.texts = [plain(message.text) for message in last.result.thread]
        found.reason = last.result.halted_reason or ""
        found.error = "" if last.result.error is None else str(getattr(last.result.error, "reason", ""))
    elif last.result is not None:
        found.texts = [plain(last.result.message.text)]
    return found


def same(what: str, found: Any, expected: Any) -> None:
    assert found == expected, f"{what}: {found}, not {expected}"


def judge(name: str, played: list[Played], expected: Outcome, kills: int) -> None:
    """Raise ``AssertionError`` if anything was lost, done twice or shown unchecked."""
    chat, found = CHATS[name], outcome(name, played)
    if chat.is_cut:
        same("the last text", found.texts[-1], expected.texts[-1])
    else:
        same("the texts", found.texts, expected.texts)
    same("the end", (found.reason, found.error), (expected.reason, expected.error))
    same("the effects", {*found.effects}, {*expected.effects})
    begun = Counter(lines("begun"))
    same("what began", {*begun}, {*expected.effects})
    for line, times in Counter(lines("begun")).items():
        assert times == 1 or (line.startswith(IDEMPOTENT) and times <= 1 + kills), f"{line} began {times} times"
    assert found.questions <= expected.questions + kills * chat.open, f"{found.questions} questions"
    restarts = 0
    for run in played:
        judge_run(run)
        restarts += sum(isinstance(event, StepRestarted) for event in run.events)
        if chat.is_guarded:
            passed = "".join(lines("passed"))
            shown = [event.delta for event in run.events if isinstance(event, TextDelta)]
            assert all(text.strip() in passed for text in shown), shown
            assert SECRET not in "".join(map(text_of, run.events))
    assert restarts <= kills, f"{restarts} restarts"


def text_of(event: Event) -> str:
    """Return what an event shows. The error of a guard has the text too, for logs."""
    match event:
        case TextDelta(delta=text) | TextCompleted(text=text):
            return text
        case MessageCompleted(message=message):
            return message.text
        case StepCompleted(result=result) | ChatCompleted(result=result):
            return "".join(message.text for message in result.thread)
        case _:
            return ""


def folded(events: list[Event]) -> StreamCollector:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state


def judge_run(run: Played) -> None:
    state = folded(run.events)
    if run.result is None:
        return
    if not isinstance(run.result, ChatResult):
        assert state.to_response() == run.result
        return
    assert state.chat_result == run.result
    steps = [event.result for event in run.events if isinstance(event, StepCompleted)]
    assert [*run.result.steps] == steps, "the chat is not that of its steps"
    assert sum(isinstance(event, ChatCompleted) for event in run.events) == 1
    for step in steps:  # each answer has been shown, as it is
        assert step.thread == run.result.thread[: len(step.thread)]


def to_json(value: Outcome) -> str:
    return json.dumps(vars(value))
