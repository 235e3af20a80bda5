"""A thousand watchers of a hundred runs: nothing is lost, and each run is read once for all of them."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import ChatResult, Fake, RunError, StreamCollector
from rxllm.durable import Run, Runs, open_runs, open_store
from rxllm.durable._log import Tail
from rxllm.durable._store import LONGEST_LEASE
from rxllm.durable.testing import Interposed
from rxllm.events import Event, TextDelta
from tests.durable.conftest import MakeStore
from tests.durable.support import in_loop
from tests.waiting import turns, until

RUNS, WATCHERS = 100, 10
WORDS: list[Any] = [entry for number in range(20) for entry in (f"word{number} ", ("delay", 0.01))]


def build(input: Any) -> Any:
    return rxllm.stream(Fake(WORDS), f"A story about {input}?")


def fold(events: list[Event]) -> StreamCollector:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state


async def watch(runs: Runs, id: str, number: int) -> list[Event]:
    """As watchers do: from the start, from a fold, late, or leaving after every `number` events."""
    await turns(2 * number)
    if number == 1:
        return [event async for event in runs.watch(id, folded=True)]
    if number < 6:
        return [event async for event in runs.watch(id)]
    seen: list[Event] = []
    while True:
        count = len(seen)
        async for event in runs.watch(id, after=count):
            seen.append(event)
            if len(seen) == count + number:
                break
        else:
            return seen


@pytest.mark.judges
def test_nothing_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_runs(tmp_path / "runs.db", {"story": build}) as runs:
            ids = [await runs.start("story", number) for number in range(RUNS)]
            seen = await asyncio.gather(*(watch(runs, id, number) for id in ids for number in range(WATCHERS)))
            for index, id in enumerate(ids):
                result = await runs.result(id)
                assert isinstance(result, ChatResult)
                every, folded, *others = seen[WATCHERS * index : WATCHERS * (index + 1)]
                assert fold(every).chat_result == fold(folded).chat_result == result
                assert all(other == every for other in others)
            assert runs.produced == ()

    in_loop(main)


def test_new_events_are_read_once_for_all_watchers(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    async def main() -> None:
        async with open_runs(tmp_path / "runs.db", {"story": build}) as runs:
            store = Interposed(open_store(tmp_path / "runs.db"), before=lambda method, _: calls.update([method]))
            async with open_runs(store, {}) as others:
                id = await runs.start("story", "read once")
                seen = await asyncio.gather(*(watch(others, id, 0) for _ in range(200)))
                assert all(events == seen[0] for events in seen)

    in_loop(main)
    assert calls["events"] < 200
    assert calls["wait"] < 100


@pytest.mark.sockets
def test_a_producers_own_commits_do_not_wake_it(make_store: MakeStore) -> None:
    calls: Counter[str] = Counter()

    async def main() -> None:
        store = Interposed(make_store(), before=lambda method, _: calls.update([method]))

        async def words(request: Any, call: Any) -> Any:
            for number in range(10):
                yield TextDelta(f"{number} ")
                await until(lambda number=number: calls["append"] > number)

        factories: dict[str, Any] = {"slow": lambda input: rxllm.stream(words, "Hi")}
        async with open_runs(store, factories, lease=LONGEST_LEASE) as runs:
            await runs.start("slow")
            await until(lambda: not runs.produced)

    in_loop(main)
    assert calls["append"] > 10
    assert calls["renew"] == calls["wait"] == 1  # the next ones come after a third of the lease


def test_whoever_is_behind_the_window_reads_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        factories: dict[str, Any] = {"long": lambda input: rxllm.stream_generate(Fake(["a"] * 4000), "Hi")}
        async with open_runs(tmp_path / "runs.db", factories) as runs:
            id = await runs.start("long")
            async with rxllm.to_async_iter(runs.watch(id), maxsize=8) as slow:
                seen = [await anext(slow)]
                others = await asyncio.gather(*(watch(runs, id, 0) for _ in range(5)))
                seen += [event async for event in slow]
            assert all(events == seen for events in others)

    in_loop(main)


def test_a_store_that_fails_behind_watchers_who_have_left_is_no_error_of_a_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        waits, fails = asyncio.Event(), asyncio.Event()

        async def before(method: str, arguments: tuple[Any, ...]) -> None:
            if method == "wait":
                waits.set()
                await fails.wait()
                raise RunError("store_unavailable")

        store = Interposed(open_store(tmp_path / "runs.db"), before=before)
        await store.create(Run("run", "factory", b"1"))
        watcher = asyncio.create_task(Tail(store, "run").after(0))
        await waits.wait()
        watcher.cancel()
        await asyncio.wait([watcher])
        fails.set()
        await turns()
        await store.close()

    in_loop(main)
    gc.collect()
    assert [record.message for record in caplog.records] == []
