"""examples/dictated_file.py, run as a user runs it: with its script, and with a model over a real connection."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rxllm.testing.loopback import STALL, Loopback, Reply, Request, chat
from tests.operators.support import of_chat, pieces_of
from tests.programs import EXAMPLES, python

pytestmark = pytest.mark.judges

PROGRAM = str(EXAMPLES / "dictated_file.py")


def test_its_script_is_refused_and_then_saved(tmp_path: Path) -> None:
    finished = python(PROGRAM, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    refused, saved, last = finished.stdout.splitlines()
    assert refused == "refused after 40 characters: ../poem.txt is outside your folder"
    assert saved == "saved after 3522 characters: poem.txt has 3391 bytes"
    assert last == "The poem is in poem.txt."
    assert [path.name for path in (tmp_path / "dictated").iterdir()] == ["poem.txt"]
    assert not (tmp_path / "poem.txt").exists()


def test_a_path_that_a_model_dictates_is_refused_at_once(tmp_path: Path) -> None:
    def answer(request: Request) -> Reply:
        if request.json["messages"][-1]["role"] == "tool":
            return Reply(chat(f"It said: {request.json['messages'][-1]['content']}"))
        frames = [frame.replace(b'"save"', b'"write_file"') for frame in of_chat(pieces_of("x" * 500))]
        return Reply([*frames[: len(frames) // 2], STALL])  # only the client can end it

    with Loopback(answer) as server:
        environment = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"}
        finished = python(PROGRAM, "openai:m", "Write to /etc/passwd.", cwd=tmp_path, env=environment)
        assert finished.returncode == 0, finished.stderr
        assert server.connections[0].closed_by == "client"
    assert finished.stdout.splitlines()[0] == "I save it."
    assert "/etc/passwd is outside your folder" in finished.stdout.splitlines()[-1]
    assert not (tmp_path / "dictated").exists()
