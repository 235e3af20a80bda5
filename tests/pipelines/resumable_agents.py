"""A chat whose agents are three deep, and halt; each process does one part, and notes what its tools do in a file.

``python resumable_agents.py FILE ask`` prints the JSON of the halted chat, and then waits to be killed.
``python resumable_agents.py FILE answer`` reads that, answers all that waits, and prints the JSON of the result.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import rxllm
from rxllm import ChatResult, Engine, Fake, ToolCall, ask_user, serializer, tool

EFFECTS = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("effects")


def note(what: str) -> str:
    with EFFECTS.open("a") as file:
        file.write(f"{what}\n")
    return what


@tool
def look() -> str:
    return note("looked")


@tool(approval=True)
def pay(amount: int) -> str:
    return note(f"paid {amount}")


@tool
def choose() -> Any:
    note("asked")
    return ask_user("Which city?")


sign = tool(name="sign", manual=True)

CALLS = (
    ToolCall("look", "look"),
    ToolCall("pay", "pay", {"amount": 5}),
    ToolCall("ask", "choose"),
    ToolCall("sign", "sign"),
)


def model(*calls: ToolCall) -> Fake:
    """Make `calls` first, and then say what came of them."""

    def reply(request: Any) -> Any:
        texts = [message.text for message in request.messages[1:] if message.role != "assistant"]
        return " + ".join(texts) if texts else list(calls)

    return Fake(reply)


def engine() -> Engine:
    tools: list[Any] = [look, pay, choose, sign]
    calls = CALLS
    for level in (3, 2, 1):
        tools = [Engine(model(*calls), tools=tools).as_tool(name=f"agent{level}"), pay]
        calls = (ToolCall(f"c{level}", f"agent{level}", {"prompt": "go"}), ToolCall("pay", "pay", {"amount": level}))
    return Engine(model(*calls), tools=tools)


def answer(halted: ChatResult) -> ChatResult:
    approvals = {call.id: True for call in halted.pending_tool_calls if call.name == "pay"}
    results = {call.id: "signed" for call in halted.pending_tool_calls if call.name == "sign"}
    if halted.pending_tool_call_id:
        results[halted.pending_tool_call_id] = "Lima"
    return rxllm.resume(engine(), halted.thread, approvals=approvals, results=results).run()


def main(what: str) -> None:
    if what == "ask":
        halted = rxllm.chat(engine(), "Go").run()
        print(serializer.to_json(halted), flush=True)
        signal.pause()  # until it is killed
    else:
        print(serializer.to_json(answer(serializer.from_json(sys.stdin.read()))))


if __name__ == "__main__":
    main(sys.argv[2])
