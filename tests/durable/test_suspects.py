"""Runs beside one that kills its process: it fails, and they do not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import ChatResult, Fake, RunError
from rxllm.durable import Record, open_runs, open_store
from rxllm.durable import _producer as suspects
from tests.durable.support import in_loop
from tests.runtime.support import ROOT, until

PROGRAM = """
import asyncio, os, sys, rxllm
from rxllm import Fake, ToolCall, tool
from rxllm.durable import open_runs

@tool(idempotent=True)
async def crash() -> str:
    await asyncio.sleep(0.05)
    os._exit(9)

def build_killer(input):
    return rxllm.stream(Fake(ToolCall("c0", "crash", {})), input, tools=[crash])

def build_chat(input):
    return rxllm.stream(Fake(["Well, ", ("delay", 0.2), "done."]), input)

async def main(path, killer):
    async with open_runs(path, dict(chat=build_chat, killer=build_killer), lease=1.0) as runs:
        if not await runs.list():
            for number in range(20):
                await runs.start("killer" if number == int(killer) else "chat", "Go", id=f"run {number}", here=False)
        recovering = runs.recover(every=0.02).subscribe()
        while any(run.ended_at is None for run in await runs.list()):
            await asyncio.sleep(0.05)
        recovering.dispose()

deaths = 0
while deaths < 30:
    if not (child := os.fork()):
        asyncio.run(main(*sys.argv[1:]))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 9:
        break
    deaths += 1
print(deaths, code)
"""


@pytest.mark.long
def test_a_run_that_kills_its_process_fails_alone(tmp_path: Path) -> None:
    killer = 12
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "runs.db"), str(killer)]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, check=False, timeout=120)
    assert ended.stdout == b"10 0\n"
    assert ended.stderr.startswith(b"error in run run 12: RunError('too_many_attempts'")

    async def main() -> None:
        async with open_runs(tmp_path / "runs.db", {}) as runs:
            statuses = {run.id: run.status for run in await runs.list()}
            assert statuses.pop(f"run {killer}") == "failed"
            assert {*statuses.values()} == {"completed"}
            with pytest.raises(RunError) as caught:
                await runs.result(f"run {killer}")
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
    await asyncio.sleep(0.01)


class Model:
    """Counts the runs that are asked at the same time."""

    def __init__(self, *answer: Any) -> None:
        self.open, self.most, self.answer = 0, 0, answer

    def __call__(self, request: Any) -> Any:
        self.open += 1
        self.most = max(self.most, self.open)
        return [*self.answer, "Done."]

    def build(self, input: Any) -> Any:
        def close() -> None:
            self.open -= 1

        return rxllm.stream(Fake(self), input).finally_action(close)


@pytest.mark.parametrize(("attempts", "most"), [(1, 5), (2, 1)])
def test_a_run_at_which_three_processes_have_died_goes_on_alone(tmp_path: Path, attempts: int, most: int) -> None:
    async def main() -> None:
        await suspected(tmp_path / "runs.db", 5, attempts)
        model = Model(("delay", 0.2))
        async with open_runs(tmp_path / "runs.db", {"chat": model.build}) as runs:
            ids = await runs.recover()
            assert sorted(ids) == [str(number) for number in range(5)]
            for id in ids:
                assert isinstance(await runs.result(id), ChatResult)
        assert model.most == most

    in_loop(main)


def test_a_suspect_that_is_slow_holds_the_others_back_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "ALONE_SECONDS", 0.3)

    async def main() -> None:
        await suspected(tmp_path / "runs.db", 3)
        model = Model("Well, ", ("delay", 60))
        async with open_runs(tmp_path / "runs.db", {"chat": model.build}) as runs:
            await runs.recover()
            await until(lambda: model.open == 1)
            await asyncio.sleep(0.1)
            assert model.open == 1
            await until(lambda: model.open == 3)

    in_loop(main)


def test_a_suspect_that_has_not_had_its_turn_has_not_died_and_not_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "runs.db"
        await suspected(path, 3)
        model = Model("Well, ", ("delay", 60))
        async with open_runs(path, {"chat": model.build}) as runs:
            await runs.recover()
            await until(lambda: model.open == 1)
        store = open_store(path)
        noted = sorted([[record.kind for record in await store.records(str(number))] for number in range(3)])
        await store.close()
        assert noted == [["attempt"] * 2, ["attempt"] * 2, ["attempt"] * 3 + ["stop"]]

    in_loop(main)
