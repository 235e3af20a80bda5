"""Agents three deep halt in one process, which is killed, and go on in another from JSON."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rxllm import ChatResult, serializer
from tests.programs import SECONDS, python

pytestmark = pytest.mark.judges

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(__file__).with_name("resumable_agents.py"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def killed_after_its_first_line(*arguments: str) -> str:
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
        process.kill()
    assert process.wait(SECONDS) < 0
    return line


def test_each_side_effect_happens_once_across_the_processes(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    line = killed_after_its_first_line("-W", "error", PROGRAM, str(effects), "ask")
    halted = serializer.from_json(line)
    assert isinstance(halted, ChatResult)
    assert (halted.halted_reason, halted.pending_tool_call_id) == ("ask_user", "c1/c2/c3/ask")
    waiting = {call.id for call in halted.pending_tool_calls}
    assert waiting == {"pay", "c1/pay", "c1/c2/pay", "c1/c2/c3/pay", "c1/c2/c3/sign"}
    assert Counter(effects.read_text().split("\n")[:-1]) == {"looked": 1, "asked": 1}
    ran = python("-W", "error", PROGRAM, str(effects), "answer", input=line, env=ENVIRONMENT)
    assert ran.returncode == 0, ran.stderr
    done = serializer.from_json(ran.stdout)
    assert (done.halted_reason, done.error) == ("completed", None)
    innermost = "looked + paid 5 + <awaiting user response> + signed + Lima"
    assert done.output_text == f"{innermost} + paid 3 + paid 2 + paid 1"
    once = ["looked", "asked", "paid 5", "paid 3", "paid 2", "paid 1"]
    assert Counter(effects.read_text().split("\n")[:-1]) == dict.fromkeys(once, 1)
