"""Chats and sessions that halt, are written to JSON, and go on in a new process: a scripted model, and a real one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rxllm import ChatResult, serializer
from rxllm.adapters.local.server import find_weights
from rxllm.values import EngineError, Session
from tests.programs import python

pytestmark = pytest.mark.judges

ROOT = Path(__file__).parents[2]


def process(what: str, argument: str, given: str = "", program: str = "resumable.py") -> str:
    program = str(Path(__file__).with_name(program))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = python("-W", "error", program, what, argument, input=given, cwd=ROOT, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module", params=["fake", "local"])
def told(request: Any) -> tuple[list[Any], list[Any]]:
    """What the first process wrote, and what the second."""
    if request.param == "local":
        pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
        try:
            find_weights()
        except EngineError as error:
            pytest.skip(str(error))
    asked = process("ask", request.param)
    return serializer.from_json(asked), serializer.from_json(process("answer", request.param, asked))


@pytest.mark.parametrize("place", range(3))
def test_a_halted_chat_is_completed_in_a_new_process(told: tuple[list[Any], list[Any]], place: int) -> None:
    waiting, done = (values[2 * place] for values in told)
    assert isinstance(waiting, ChatResult)
    assert waiting.halted_reason == ["ask_user", "manual_tool_calls", "approval"][place]
    assert isinstance(done, ChatResult)
    assert (done.halted_reason, done.error) == ("completed", None)
    assert done.output_text
    assert done.thread.messages[: len(waiting.thread)] == waiting.thread.messages
    assert [message.tool_call_id for message in done.thread if message.role == "tool"] == ["call_0"]


@pytest.mark.parametrize("place", range(3))
def test_so_is_a_session(told: tuple[list[Any], list[Any]], place: int) -> None:
    waiting, done = (values[2 * place + 1] for values in told)
    assert isinstance(waiting, Session)
    assert waiting.status == ["awaiting_user", "awaiting_tools", "awaiting_tools"][place]
    assert (done.id, done.status, done.pending_tool_calls, done.pending_question) == ("s1", "completed", (), None)
    assert done.messages[-1].text


def test_an_approved_tool_runs_once_in_the_process_that_approves(told: tuple[list[Any], list[Any]]) -> None:
    assert [values[-1].metadata["paid"] for values in told] == [0, 2]  # the chat's and the session's


def paid(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()]


def test_a_call_has_the_same_key_in_the_process_that_resumes_it_and_may_be_edited_there(tmp_path: Path) -> None:
    alive, resumed = tmp_path / "alive", tmp_path / "resumed"
    process("live", str(alive), program="paying.py")
    halted = process("ask", str(resumed), program="paying.py")
    assert not resumed.exists()
    done = serializer.from_json(process("answer", str(resumed), halted, program="paying.py"), ChatResult)
    assert [amount for _, amount in paid(alive)] == ["5", "5", "9"]
    assert [amount for _, amount in paid(resumed)] == ["5", "2", "9"]
    assert [key for key, _ in paid(resumed)] == [key for key, _ in paid(alive)]
    assert len({key for key, _ in paid(alive)}) == 3
    assert done.halted_reason == "completed"
    assert [call.arguments for call in done.thread[1].tool_calls] == [{"amount": 5}, {"amount": 5}, {}]
    process("answer", str(resumed), halted, program="paying.py")
    assert paid(resumed)[3:] == paid(resumed)[:3]  # the keys tell a payment service that it has seen these
