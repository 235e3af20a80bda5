"""The log of a run holds each message once: it grows with what the steps add, and gives back every event as it was."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rxllm
from rxllm import Engine, Fake, Message, Request, RunError, Thread, ToolCall, serializer, tool
from rxllm import operators as ops
from rxllm.durable import Record, Run, Store, open_runs, open_store
from rxllm.durable._log import PAGE, Log
from rxllm.events import Event, StepCompleted
from rxllm.testing import strategies
from rxllm.values import Timed
from tests.durable.conftest import MakeStore
from tests.durable.support import in_loop

TEXT = "a long result of a tool, " * 40


@tool(idempotent=True)
def look(n: int) -> str:
    return f"{n}: {TEXT}"


def model(name: str, steps: int) -> Fake:
    """Return a model that calls the tool `name` in each of its steps but the last, in whichever process it is asked."""

    def answer(request: Request) -> Any:
        number = sum(message.role == "tool" for message in request.messages)
        arguments = {"prompt": f"{number}"} if name == "agent" else {"n": number}
        return ToolCall(f"c{number}", name, arguments) if number < steps else "Done."

    return Fake(answer)


def build(steps: int) -> Any:
    return rxllm.stream(model("look", steps), "Look!", tools=[look], max_turns=steps + 1)


def build_agents(input: str) -> Any:
    agent = Engine(model("look", 2), tools=[look]).as_tool(name="agent", description="Looks twice.")
    return rxllm.stream(model("agent", 2), input, tools=[agent])


def build_two_chats(input: str) -> Any:
    return build(3).concat(rxllm.stream(Fake("Again."), input))


def build_changed(input: str) -> Any:
    """A chat whose steps are not those of its end: somebody has changed them on the way."""

    def change(event: Event) -> Event:
        if not isinstance(event, StepCompleted):
            return event
        thread = Thread((rxllm.system("Short."), *event.thread.messages[-2:]))
        return StepCompleted(rxllm.StepResult(thread, event.response))

    return build(3).map(change)


CHATS = {"agents": build_agents, "two_chats": build_two_chats, "changed": build_changed}


async def log_of(store: Store, id: str) -> list[bytes]:
    return [*await store.events(id, 0, 100_000)]


@pytest.mark.parametrize("name", CHATS)
def test_watchers_see_the_events_of_the_stream_wherever_they_begin(make_store: MakeStore, name: str) -> None:
    async def main() -> None:
        expected = [event async for event in CHATS[name]("Go!")]
        async with open_runs(make_store(), CHATS) as runs, open_runs(make_store(), {}) as elsewhere:
            id = await runs.start(name, "Go!")
            assert [event async for event in elsewhere.watch(id)] == expected
            for after in range(1, len(expected), 5):  # each begins without what comes before it
                assert [event async for event in elsewhere.watch(id, after=after)] == expected[after:]

    in_loop(main)


@pytest.mark.judges
def test_a_log_grows_with_what_its_steps_add(tmp_path: Path) -> None:
    async def size(steps: int) -> int:
        async with open_runs(tmp_path / "runs.db", {"look": build}) as runs:
            id = await runs.start("look", steps)
            result = await runs.result(id)
            assert len(result.steps) == steps + 1
            return sum(map(len, await log_of(runs._store, id)))

    async def main() -> None:
        small, middle, large = [await size(steps) for steps in (10, 20, 40)]
        assert large - middle == pytest.approx(2 * (middle - small), rel=0.02)
        assert large < 40 * 8 * len(TEXT)

    in_loop(main)


def test_each_message_is_in_one_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_runs(tmp_path / "runs.db", {"agents": build_agents}) as runs:
            id = await runs.start("agents", "Go!")
            await runs.result(id)
            entries = [json.loads(data) for data in await log_of(runs._store, id)]
        ends = [entry for entry in entries if entry["v"] == 2]
        assert len(ends) == 3 + 1 + 2 * 4  # the chat's, and those of its agent's two chats
        threads = [entry["event"].get("event", entry["event"])["result"]["thread"] for entry in ends]
        assert [len(thread.get("messages", ())) for thread in threads] == [3, 2, 1, 0, 3, 3, 2, 1, 0, 2, 1, 0]
        assert [entry["steps"] for entry in ends if entry["steps"]] == [3, 3, 3]

    in_loop(main)


@pytest.mark.judges
def test_a_recovered_run_goes_on_with_the_ends_that_are_committed(make_store: MakeStore) -> None:
    """It stops in every place of the chat, and another producer takes it over: each message is still there once."""

    async def main() -> None:
        expected = await build(4).pipe(ops.to_chat_result())
        whole = [event async for event in build(4)]
        for stop in range(2, len(whole), 3):
            async with open_runs(make_store(), {"look": build}) as runs:
                id = await runs.start("look", 4)
                async for _ in runs.watch(id).take(stop):
                    pass
            async with open_runs(make_store(), {"look": build}) as runs:
                with runs.recover(every=1.0).subscribe():  # a slow store may keep the lease until it expires
                    assert await runs.result(id) == expected
                data = await log_of(runs._store, id)
                assert sum(entry.count(f"3: {TEXT}".encode()) for entry in data) <= 4

    in_loop(main)


def test_a_log_of_version_1_is_read_and_continued(tmp_path: Path) -> None:
    """As an earlier release wrote it: every event in full."""

    async def main() -> None:
        whole = [event async for event in build(3)]
        store = open_store(tmp_path / "runs.db")
        ends = [number for number, event in enumerate(whole, 1) if isinstance(event, StepCompleted)]
        async with open_runs(store, {"look": build}) as runs:
            id = await runs.start("look", 3)
            assert [event async for event in runs.watch(id)] == whole
            records = await store.records(id)
            await store.create(Run("old", "look", (await store.load(id)).input))
            lease = await store.claim("old", "somebody", 5.0)
            assert lease is not None
            events = [serializer.to_json(event).encode() for event in whole[: ends[1]]]
            notes = [record for record in records if record.kind in ("response", "begin", "finish")][:6]
            await store.append(lease, events, [Record(note.kind, note.key, note.data) for note in notes])
            await store.release(lease)
            assert [event async for event in runs.watch("old").take(ends[1])] == whole[: ends[1]]
            await runs.recover()
            assert [event async for event in runs.watch("old")] == whole
            assert [event async for event in runs.watch("old", after=ends[2])] == whole[ends[2] :]
            timed = [event async for event in runs.watch("old", timed=True)]
            assert [event.item for event in timed] == whole
            assert {event.at for event in timed[: ends[1]]} == {0.0}  # this version did not write times
            assert (await runs.result("old")) == whole[-1].result

    in_loop(main)


def test_an_entry_of_a_later_version_is_refused_by_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        store = open_store(tmp_path / "runs.db")
        await store.create(Run("later", "look", b'{"type": "custom", "name": "input", "v": 1}'))
        lease = await store.claim("later", "somebody", 5.0)
        assert lease is not None
        await store.append(lease, [b'{"v": 3, "before": 0, "event": {"type": "step_completed"}}'])
        async with open_runs(store, {}) as runs:
            with pytest.raises(RunError, match=r"version is 3.* up to 2"):
                await runs.watch("later")

    in_loop(main)


class Events:
    """A store that has nothing but events."""

    def __init__(self) -> None:
        self.log: list[bytes] = []

    async def events(self, id: str, after: int = 0, limit: int = 1000) -> list[bytes]:
        return self.log[after : after + limit]


@given(st.lists(strategies.lawful_chats, min_size=1, max_size=3), st.integers(0, 400))
def test_any_chats_come_back_as_they_were(chats: list[list[Event]], start: int) -> None:
    events = [event for chat in chats for event in chat]
    store: Any = Events()
    log = Log(store, "run")
    times = [1000.0 + number for number in range(len(events))]
    with patch("rxllm.durable._log.time", SimpleNamespace(time=iter(times).__next__)):
        store.log = [log.encode(number, event) for number, event in enumerate(events, 1)]
    assert [json.loads(entry)["at"] for entry in store.log] == times

    async def read(after: int) -> list[Event]:
        reader, read = Log(store, "run"), list[Timed[Event]]()
        while page := await reader.page(after + len(read)):
            assert len(page) <= PAGE
            read += page
        assert [timed.at for timed in read] == times[after:]
        return [timed.item for timed in read]

    # In JSON what tools return becomes data, as it does everywhere.
    expected = [serializer.from_json(serializer.to_json(event)) for event in events]
    assert asyncio.run(read(0)) == expected
    start = min(start, len(events))
    assert asyncio.run(read(start)) == expected[start:]


def test_the_key_of_a_request_is_made_of_what_a_thread_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal asks for it in each step; a thread of n messages must not be written n times."""
    written: list[Message] = []
    encode = rxllm.values.request_keys.encode
    monkeypatch.setattr(
        "rxllm.values.request_keys.encode",
        lambda item: (written.append(item) if isinstance(item, Message) else None, encode(item))[1],
    )
    thread = Thread()
    for n in range(20):
        thread += f"message {n}"
        copy = serializer.from_json(serializer.to_json(thread))
        assert rxllm.values.request_key(Request(thread.messages)) == rxllm.values.request_key(Request(copy.messages))
    assert len(written) == 20 + sum(range(21))  # once, and in each copy, whose messages are others
