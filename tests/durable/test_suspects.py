"""Runs beside one that kills its process: it fails, and they do not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rxllm
from rxllm import ChatResult, Fake, RunError
from rxllm.durable import Record, open_runs, open_store
from rxllm.durable import _producer as suspects
from rxllm.events import TextDelta
from tests.durable import working
from tests.durable.support import forked, in_loop
from tests.waiting import until


@pytest.mark.judges
def test_a_run_that_kills_its_process_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_runs(path, {"chat": working.build_chat, "killer": working.build_killer}) as runs:
        for number in range(20):
            runs.start("killer" if number == 12 else "chat", "Go", id=f"run {number}", here=False).run()
    deaths = 0
    while True:
        with forked(working.work_beside_killer, str(path)) as (process, pipe):
            with suppress(EOFError):
                logged = pipe.recv()
                break
            process.join()
            assert process.exitcode == 9
            deaths += 1
    assert deaths == 10
    assert logged[0].startswith("error in run run 12: RunError('too_many_attempts'")

    async def main() -> None:
        async with open_runs(path, {}) as runs:
            statuses = {run.id: run.status for run in await runs.list()}
            assert statuses.pop("run 12") == "failed"
            assert {*statuses.values()} == {"completed"}
            with pytest.raises(RunError) as caught:
                await runs.result("run 12")
            assert caught.value.reason == "too_many_attempts"

    in_loop(main)


ATTEMPT = Record("attempt", "")


async def suspected(path: Path, count: int, attempts: int = 2) -> None:
    """Leave runs at which processes have died, one more than there are attempts noted."""
    store = open_store(path)
    async with open_runs(store, {"chat": lambda input: rxllm.stream(Fake("Hi"), input)}) as runs:
        for number in range(count):
            await runs.start("chat", str(number), id=str(number), here=False)
            lease = await store.claim(str(number), "somebody", 0.0)
            assert lease is not None
            await store.append(lease, [], [ATTEMPT] * attempts)


class Model:
    """Counts the runs that are asked, each of which is answered when it `may` go on."""

    def __init__(self) -> None:
        self.open, self.asked, self.may = 0, 0, asyncio.Semaphore(0)

    async def answer(self, request: Any, call: Any) -> Any:
        self.open += 1
        self.asked += 1
        yield TextDelta("Well, ")
        await self.may.acquire()
        yield TextDelta("done.")

    def build(self, input: Any) -> Any:
        def close() -> None:
            self.open -= 1

        return rxllm.stream(self.answer, input).finally_action(close)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An entry for each time that a suspect has looked whether it is its turn."""
    seen: list[Any] = []
    take = suspects.Suspects._take
    monkeypatch.setattr(suspects.Suspects, "_take", lambda *arguments: (take(*arguments), seen.append(arguments))[0])
    return seen


async def until_all_have_looked(looks: list[Any], count: int) -> None:
    looks.clear()
    await until(lambda: len({rank for _, rank, _ in looks}) == count and len(looks) > 2 * count)


@pytest.mark.parametrize(("attempts", "most"), [(1, 5), (2, 1)])
def test_a_run_at_which_three_processes_have_died_goes_on_alone(
    tmp_path: Path, attempts: int, most: int, looks: list[Any]
) -> None:
    async def main() -> None:
        await suspected(tmp_path / "runs.db", 5, attempts)
        model = Model()
        async with open_runs(tmp_path / "runs.db", {"chat": model.build}) as runs:
            ids = await runs.recover()
            assert sorted(ids) == [str(number) for number in range(5)]
            for number in range(most, 6, most):
                await until(lambda number=number: model.asked == number)
                if number < 5:
                    await until_all_have_looked(looks, 5 - number)
                assert model.asked == number
                for _ in range(most):
                    model.may.release()
            for id in ids:
                assert isinstance(await runs.result(id), ChatResult)

    in_loop(main)


def test_a_suspect_that_is_slow_holds_the_others_back_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[Any]
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(suspects, "time", clock)

    async def main() -> None:
        await suspected(tmp_path / "runs.db", 3)
        model = Model()
        async with open_runs(tmp_path / "runs.db", {"chat": model.build}) as runs:
            await runs.recover()
            for number in range(1, 4):
                await until(lambda number=number: model.open == number)
                now = suspects.ALONE_SECONDS * number
                clock.monotonic = lambda now=now: now - 0.1
                if number < 3:
                    await until_all_have_looked(looks, 3 - number)
                assert model.open == number
                clock.monotonic = lambda now=now: now

    in_loop(main)


def test_a_suspect_that_has_not_had_its_turn_has_not_died_and_not_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "runs.db"
        await suspected(path, 3)
        model = Model()
        async with open_runs(path, {"chat": model.build}) as runs:
            await runs.recover()
            await until(lambda: model.open == 1)
        store = open_store(path)
        noted = sorted([[record.kind for record in await store.records(str(number))] for number in range(3)])
        await store.close()
        assert noted == [["attempt"] * 2, ["attempt"] * 2, ["attempt"] * 3 + ["stop"]]

    in_loop(main)
