"""No test waits for ever: under the project's own settings, with a second for two minutes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.programs import python

pytestmark = pytest.mark.judges

SETTINGS = Path(__file__).parent.parent / "pyproject.toml"

HANGING = """
import asyncio, queue, subprocess, sys, threading
import reactivex
import rxllm

def beside():
    threading.Event().wait(60)

def test_a_lock():
    threading.Thread(target=beside, name="the other one", daemon=True).start()
    threading.Event().wait()

def test_a_queue():
    queue.Queue().get()

def test_a_loop():
    asyncio.run(asyncio.Event().wait())

def test_a_stream():
    rxllm.run(reactivex.never())

def test_an_iterator():
    next(iter(rxllm.Stream.of(reactivex.never())))

def test_a_process():
    subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])

def test_the_next_one():
    pass
"""


@pytest.mark.parametrize("processes", ["-n0", "-n1"])
def test_a_test_that_hangs_fails_with_all_stacks_and_the_next_one_runs(tmp_path: Path, processes: str) -> None:
    (tmp_path / "pyproject.toml").write_text(SETTINGS.read_text())
    (tmp_path / "test_hanging.py").write_text(HANGING)
    options = ["-p", "no:cacheprovider", "-o", "timeout=1", processes, str(tmp_path / "test_hanging.py")]
    ran = python("-m", "pytest", *options, cwd=tmp_path)
    assert ran.returncode == 1
    assert "6 failed, 1 passed" in ran.stdout.splitlines()[-1]
    assert "Stack of the other one" in ran.stdout
    assert "in beside" in ran.stdout


def test_a_test_that_no_signal_ends_is_ended_with_its_process(tmp_path: Path) -> None:
    """A signal's exception is lost inside uvloop; the longest of our own bounds is shorter than this last one."""
    pytest.importorskip("uvloop")
    settings = tomllib.loads(SETTINGS.read_text())["tool"]["pytest"]["ini_options"]
    assert settings["timeout"] < settings["faulthandler_timeout"] <= 400
    (tmp_path / "pyproject.toml").write_text(SETTINGS.read_text())
    (tmp_path / "test_deaf.py").write_text("import asyncio, uvloop\ndef test(): uvloop.run(asyncio.Event().wait())")
    options = ["-p", "no:cacheprovider", "-o", "faulthandler_timeout=1", "-n0", str(tmp_path / "test_deaf.py")]
    ran = python("-m", "pytest", *options, cwd=tmp_path)
    assert ran.returncode == 1
    assert "Timeout (0:00:01)!" in ran.stderr
    assert "test_deaf.py" in ran.stderr


def test_every_process_collects_the_same_tests_in_the_same_order(pytestconfig: pytest.Config) -> None:
    """Names that tell addresses, or the order of a set, would differ between the processes of one run."""
    assert " at 0x" not in "".join(item.nodeid for item in pytestconfig.pluginmanager.get_plugin("session").items)
