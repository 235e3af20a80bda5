"""``python -m rxllm worker``: runs are gone on with until SIGTERM or Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rxllm.durable import Runs, open_runs
from tests.programs import python
from tests.runtime.support import ROOT, finished
from tests.waiting import wait_until

APP = """
import asyncio, os
import rxllm
from rxllm.durable import open_runs

async def seen(file):
    while not os.path.exists(file):
        await asyncio.sleep(0.01)

def build_story(file):
    async def tell(request):
        await seen(file)
        for _ in range(100):  # turns in which a worker could look for more
            await asyncio.sleep(0)
        return "Once upon"

    return rxllm.stream(rxllm.Fake(tell), "A story?")

runs = open_runs("runs.db", {"story": build_story}, lease=600)
recover = runs.recover
number = 7

def make():
    return runs

async def look(most):
    ids = await recover(most)
    open("looked", "w").close()
    await seen("signalled")
    return ids

def make_held():
    runs.recover = look
    return runs
"""
"""A story ends when there is the file that its input names. A worker of ``make_held`` stays in its first look."""

NOW, NEVER = "app.py", "never"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def worker(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rxllm", "worker", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_status(runs: Runs, status: str) -> None:
    wait_until(lambda: [run.status for run in runs.list().run()], lambda seen: seen == [status])


@pytest.mark.judges
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_it_produces_the_runs_that_wait_and_gives_back_those_that_go_on(folder: Path, end: signal.Signals) -> None:
    with open_runs(folder / "runs.db", {"story": print}) as runs:
        first = runs.start("story", NOW, here=False).run()
        process = worker(folder, "app:make", "--every", "0.05", "--grace", "0")
        try:
            until_status(runs, "completed")
            assert runs.expire(0).run() == 1
            second = runs.start("story", NEVER, here=False).run()
            until_status(runs, "running")
            process.send_signal(end)
            code, out, err = finished(process)
        finally:
            process.kill()
        assert (code, err) == (0, "")
        assert out.splitlines()[1:] == [f"run {first}", f"run {second}"]
        assert [run.status for run in runs.list().run()] == ["waiting"]  # at once, and not when the lease ends


@pytest.mark.judges
def test_after_a_signal_its_runs_may_end_and_no_more_are_taken(folder: Path) -> None:
    with open_runs(folder / "runs.db", {"story": print}) as runs:
        short = runs.start("story", "end", here=False).run()
        process = worker(folder, "app:make_held", "--every", "0.01", "--grace", "600")
        try:
            wait_until((folder / "looked").exists)
            process.send_signal(signal.SIGTERM)
            late = runs.start("story", NOW, here=False).run()
            (folder / "signalled").touch()
            (folder / "end").touch()
            code, out, err = finished(process)
        finally:
            process.kill()
        assert (code, err) == (0, "")
        assert out.splitlines()[1:] == [f"run {short}"]
        assert (runs.get(short).run().status, runs.get(late).run().status) == ("completed", "waiting")


@pytest.mark.judges
@pytest.mark.parametrize(
    ("grace", "signals"), [("1", [signal.SIGTERM]), ("600", [signal.SIGTERM, signal.SIGINT])], ids=["grace", "signal"]
)
def test_a_run_that_does_not_end_is_given_back_when_its_time_is_up_or_at_a_second_signal(
    folder: Path, grace: str, signals: list[signal.Signals]
) -> None:
    with open_runs(folder / "runs.db", {"story": print}) as runs:
        runs.start("story", NEVER, here=False).run()
        process = worker(folder, "app:make", "--every", "0.05", "--grace", grace)
        try:
            until_status(runs, "running")
            for each in signals:
                process.send_signal(each)
            code, _, err = finished(process)
        finally:
            process.kill()
        assert (code, err) == (0, "")
        assert [run.status for run in runs.list().run()] == ["waiting"]


@pytest.mark.judges
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("app", "'app' is None: write module:name"),
        ("nowhere:runs", "there is no module 'nowhere'"),
        ("app:number", "'app:number' is 7: write module:name"),
        ("app:nothing", "'app:nothing' is None: write module:name"),
    ],
)
def test_a_wrong_place_is_told(folder: Path, place: str, message: str) -> None:
    program = python("-m", "rxllm", "worker", place, cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": ""})
    assert program.returncode == 2
    assert message in program.stderr
    assert "Traceback" not in program.stderr
