"""``python -m rxllm worker``: runs are gone on with until SIGTERM or Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rxllm.durable import Runs, open_runs
from tests.programs import python
from tests.runtime.support import ROOT, finished

APP = """
import rxllm
from rxllm.durable import open_runs

def build_story(input):
    return rxllm.stream(rxllm.Fake(["Once", ("delay", input), " upon"]), "A story?")

runs = open_runs("runs.db", {"story": build_story})
number = 7

def make():
    return runs
"""


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
    bound = time.monotonic() + 20
    while [run.status for run in runs.list().run()] != [status]:
        assert time.monotonic() < bound
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_it_produces_what_waits_and_gives_back_what_goes_on(folder: Path, end: signal.Signals) -> None:
    with open_runs(folder / "runs.db", {"story": print}) as runs:
        first = runs.start("story", 0.1, here=False).run()
        process = worker(folder, "app:make", "--every", "0.05", "--grace", "0")
        try:
            until_status(runs, "completed")
            assert runs.expire(0).run() == 1
            second = runs.start("story", 60, here=False).run()
            until_status(runs, "running")
            process.send_signal(end)
            code, out, err = finished(process)
        finally:
            process.kill()
        assert (code, err) == (0, "")
        assert out.splitlines()[1:] == [f"run {first}", f"run {second}"]
        assert [run.status for run in runs.list().run()] == ["waiting"]  # at once, and not when the lease ends


@pytest.mark.long
def test_what_it_produces_may_end_and_nothing_more_is_taken(folder: Path) -> None:
    with open_runs(folder / "runs.db", {"story": print}) as runs:
        short = runs.start("story", 1.5, here=False).run()
        process = worker(folder, "app:make", "--every", "0.05")
        try:
            until_status(runs, "running")
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            late = runs.start("story", 0, here=False).run()
            code, _, err = finished(process)
        finally:
            process.kill()
        assert (code, err) == (0, "")
        assert (runs.get(short).run().status, runs.get(late).run().status) == ("completed", "waiting")


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["--grace", "0.5"], []])
def test_what_does_not_end_is_given_back_in_time_or_at_a_second_signal(folder: Path, arguments: list[str]) -> None:
    with open_runs(folder / "runs.db", {"story": print}) as runs:
        runs.start("story", 60, here=False).run()
        process = worker(folder, "app:make", "--every", "0.05", *arguments)
        try:
            until_status(runs, "running")
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert process.poll() is None
            if not arguments:
                process.send_signal(signal.SIGINT)
            began = time.monotonic()
            code, _, err = finished(process)
        finally:
            process.kill()
        assert (code, err) == (0, "")
        assert time.monotonic() - began < 10
        until_status(runs, "waiting")


@pytest.mark.long
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
