"""A chat that halts, is written to JSON, and goes on in a new process: with a scripted model, and with a real one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rxllm import ChatResult, serializer
from rxllm.adapters._local_weights import find
from rxllm.values import EngineError

# The same program in each process: what it does is said by its first argument, and the state travels as JSON.
PROGRAM = '''
import sys
import rxllm
from rxllm import ChatResult, Fake, ToolCall, ask_user, serializer, tool
from rxllm import session as sessions
from rxllm.pipelines import resume
from rxllm.values import Session

PAID = []

@tool
def choose(kind: str = "city") -> object:
    """Ask the user which city they mean."""
    return ask_user("Which city do you mean?", kind=kind)

@tool(approval=True)
def pay(amount: int = 5) -> str:
    """Pay an amount of money."""
    PAID.append(amount)
    return f"paid {amount}"

sign = tool(
    name="sign",
    description="Sign a document.",
    schema={"type": "object", "properties": {"document": {"type": "string"}}, "required": ["document"]},
    manual=True,
)
TOOLS = {"choose": choose, "pay": pay, "sign": sign}

what, model, name, question, *answer = sys.argv[1:]
if model == "fake":
    engine = Fake(lambda request: "All done." if request.messages[-1].role == "tool" or len(request.messages) > 2
                  else ToolCall("call_0", name, {"kind": "a"} if name == "choose" else {}))
else:
    engine = model
options = {"tools": [TOOLS[name]], "temperature": 0.0, "max_tokens": 60}

def answered(thread):
    if name == "choose":
        return rxllm.chat(engine, thread.add_user(answer[0]), **{**options, "tool_choice": "none"})
    given = {"approvals": {"call_0": True}} if name == "pay" else {"results": {"call_0": answer[0]}}
    return resume(engine, thread, **given, **options)

def turned(session):
    if name == "choose":
        return sessions.reply(engine, session, answer[0], **{**options, "tool_choice": "none"})
    given = {"approvals": {"call_0": True}} if name == "pay" else {"results": {"call_0": answer[0]}}
    return sessions.resume(engine, session, **given, **options)

match what:
    case "ask":
        result = rxllm.chat(engine, question, **options).run()
    case "answer":
        result = answered(serializer.from_json(sys.stdin.read(), ChatResult).thread).run()
    case "start":
        result = sessions.start(engine, Session("s1", rxllm.Thread((rxllm.user(question),))), **options).run().session
    case "turn":
        result = turned(serializer.from_json(sys.stdin.read(), Session)).run().session
assert PAID in ([], [5] if model == "fake" else [*PAID][:1]), PAID
sys.stdout.write(serializer.to_json(result))
'''

CASES = [
    ("choose", "Which city is it, ask me.", "Paris", "ask_user", "awaiting_user"),
    ("sign", "Sign the document called contract.", "signed", "manual_tool_calls", "awaiting_tools"),
    ("pay", "Pay 5 coins.", "", "approval", "awaiting_tools"),
]


def process(*arguments: str, given: str = "") -> str:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *arguments]
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, input=given, capture_output=True, text=True, timeout=200, cwd=root, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(params=["fake", "local"])
def model(request: Any) -> str:
    if request.param == "local":
        pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
        try:
            find()
        except EngineError as error:
            pytest.skip(str(error))
    return request.param


@pytest.mark.parametrize(("name", "question", "answer", "reason", "status"), CASES)
def test_a_halted_chat_is_completed_in_a_new_process(
    model: str, name: str, question: str, answer: str, reason: str, status: str
) -> None:
    written = process("ask", model, name, question)
    waiting = serializer.from_json(written, ChatResult)
    assert waiting.halted_reason == reason
    done = serializer.from_json(process("answer", model, name, question, answer, given=written), ChatResult)
    assert (done.halted_reason, done.error) == ("completed", None)
    assert done.output_text
    assert [message.tool_call_id for message in done.thread if message.role == "tool"] == ["call_0"]


@pytest.mark.parametrize(("name", "question", "answer", "reason", "status"), CASES)
def test_so_is_a_session(name: str, question: str, answer: str, reason: str, status: str) -> None:
    written = process("start", "fake", name, question)
    assert (json.loads(written)["status"], json.loads(written)["id"]) == (status, "s1")
    done = serializer.from_json(process("turn", "fake", name, question, answer, given=written))
    assert (done.id, done.status, done.messages[-1].text) == ("s1", "completed", "All done.")
