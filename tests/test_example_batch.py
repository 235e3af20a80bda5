"""examples/batch.py, run as a user runs it, against a real connection."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rxllm.testing.loopback import STALL, Loopback, Reply, Request, chat, chat_chunk
from tests.programs import EXAMPLES, python
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.judges

BATCH = str(EXAMPLES / "batch.py")


def answer(request: Request) -> Reply:
    prompt = request.json["messages"][-1]["content"]
    if prompt == "refuse":
        return Reply.of_json({"error": {"message": "I would rather not"}}, 400)
    return Reply([chat_chunk("so far"), STALL]) if prompt == "stall" else Reply(chat(prompt.upper()))


def environment(server: Loopback) -> dict[str, str]:
    return {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"}


def write(folder: Path, *prompts: str) -> list[str]:
    """Write the file of prompts, numbered from 0, and return the program's arguments."""
    lines = [json.dumps({"id": number, "prompt": prompt}) + "\n" for number, prompt in enumerate(prompts)]
    (folder / "prompts.jsonl").write_text("".join(lines))
    return [BATCH, str(folder / "prompts.jsonl"), str(folder / "answers.jsonl"), "openai:m"]


def answers(folder: Path) -> dict[int, Any]:
    lines = [json.loads(line) for line in (folder / "answers.jsonl").read_text().split("\n")[:-1]]
    assert len({line["id"] for line in lines}) == len(lines)
    return {line["id"]: line["response"]["output_text"] for line in lines}


def test_every_prompt_is_answered_once_and_progress_is_shown(tmp_path: Path) -> None:
    with Loopback(answer) as server:
        arguments = write(tmp_path, *(f"prompt {number}" for number in range(20)))
        ran = python(*arguments, env=environment(server))
        assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
        assert ran.stderr.startswith("100%|██████████| 20/20 [")
        assert answers(tmp_path) == {number: f"PROMPT {number}" for number in range(20)}
        again = python(*arguments, env=environment(server))
        assert again.returncode == 0
        assert "20 from the journal" in again.stderr
        assert len(server.requests) == 20


def test_what_has_failed_is_told_and_tried_again_the_next_time(tmp_path: Path) -> None:
    with Loopback(answer) as server:
        ran = python(*write(tmp_path, "one", "refuse", "two"), env=environment(server))
        assert ran.returncode == 1
        assert "\n1: " in ran.stderr
        assert "I would rather not" in ran.stderr
        assert answers(tmp_path) == {0: "ONE", 2: "TWO"}
        ran = python(*write(tmp_path, "one", "again", "two"), env=environment(server))
        assert (ran.returncode, answers(tmp_path)) == (0, {0: "ONE", 1: "AGAIN", 2: "TWO"})
        assert len(server.requests) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent there")
def test_ctrl_c_keeps_what_is_answered_and_closes_the_connections(tmp_path: Path) -> None:
    with Loopback(answer) as server:
        command = [sys.executable, *write(tmp_path, "one", "stall", "two")]
        with subprocess.Popen(command, env=environment(server), stderr=subprocess.PIPE, text=True) as batch:
            assert batch.stderr is not None
            wait_until(lambda: len(server.requests) == 3 and len(answers(tmp_path)) == 2)
            batch.send_signal(signal.SIGINT)
            rest = batch.stderr.read()
            assert batch.wait() == 1
        assert rest.endswith("\nstopped; run it again to continue\n")
        assert "Traceback" not in rest
        assert answers(tmp_path) == {0: "ONE", 2: "TWO"}
        server.wait_until(lambda: server.open_count == 0, PATIENCE)
        assert python(*write(tmp_path, "one", "now", "two"), env=environment(server)).returncode == 0
        assert answers(tmp_path) == {0: "ONE", 1: "NOW", 2: "TWO"}


def test_an_answer_may_hold_any_character(tmp_path: Path) -> None:
    prompt = "\u2028 \x85 \r\n \U0001f41f"
    with Loopback(answer) as server:
        for _ in range(2):
            assert python(*write(tmp_path, prompt), env=environment(server)).returncode == 0
            assert answers(tmp_path) == {0: prompt.upper()}
        assert len(server.requests) == 1


def test_half_a_line_of_a_run_that_was_killed_is_dropped(tmp_path: Path) -> None:
    with Loopback(answer) as server:
        arguments = write(tmp_path, "one", "two")
        assert python(*arguments, env=environment(server)).returncode == 0
        path = tmp_path / "answers.jsonl"
        path.write_bytes(path.read_bytes()[:-20])
        assert python(*arguments, env=environment(server)).returncode == 0
        assert answers(tmp_path) == {0: "ONE", 1: "TWO"}
        assert len(server.requests) == 3


def test_another_prompt_under_the_id_of_an_answer_is_refused(tmp_path: Path) -> None:
    with Loopback(answer) as server:
        assert python(*write(tmp_path, "one"), env=environment(server)).returncode == 0
        ran = python(*write(tmp_path, "other", "two"), env=environment(server))
        assert ran.returncode == 1
        assert "requests.0 differs in its messages" in ran.stderr
        assert len(server.requests) == 1


def test_without_a_key_a_small_model_on_this_machine_answers(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the example's model needs rxllm[local]")
    ran = python(*write(tmp_path, "Name three primes.", "Name a prime.")[:3])
    assert ran.returncode == 0, ran.stderr
    assert all(answers(tmp_path)[number] for number in range(2))


def test_wrong_arguments_are_explained() -> None:
    ran = python(BATCH)
    assert (ran.returncode, ran.stderr) == (1, "python examples/batch.py PROMPTS ANSWERS [MODEL]\n")
