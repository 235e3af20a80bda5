"""A chat that pays, in one process or in two; each payment is a line in a file: its key and its amount.

``python paying.py live FILE`` approves at once; ``python paying.py ask FILE`` prints the halted chat as JSON, and
``python paying.py answer FILE`` reads it and edits one of the amounts. Two payments are the chat's own, the third is
made by a chat inside a tool.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import rxllm
from rxllm import ChatResult, Fake, ToolCall, ToolContext, serializer, tool
from rxllm.pipelines import resume

FILE = Path(sys.argv[-1])


@tool(approval=True)
def pay(amount: int, context: ToolContext) -> str:
    """Pay an amount of money."""
    with FILE.open("a") as file:
        file.write(f"{context.idempotency_key} {amount}\n")
    return f"paid {amount}"


@tool(approval=True)
def delegate() -> Any:
    """Let somebody else pay."""
    model = Fake(ToolCall("c1", "pay", {"amount": 9}), "Done.")
    chat = rxllm.chat(model, "Pay 9.", tools=[pay], approve=lambda call: True)
    return chat.map(lambda result: result.output_text)


CALLS = [ToolCall("c1", "pay", {"amount": 5}), ToolCall("c2", "pay", {"amount": 5}), ToolCall("c3", "delegate", {})]
OPTIONS: dict[str, Any] = {"tools": [pay, delegate], "session_id": "s1", "max_concurrency": 1}


def main(what: str) -> None:
    match what:
        case "live":
            done = rxllm.chat(Fake(CALLS, "Done."), "Pay!", approve=lambda call: True, **OPTIONS).run()
        case "ask":
            done = rxllm.chat(Fake(CALLS), "Pay!", **OPTIONS).run()
        case _:
            halted = serializer.from_json(sys.stdin.read(), ChatResult)
            approvals: dict[str, Any] = {"c1": True, "c2": {"amount": 2}, "c3": True}
            done = resume(Fake("Done."), halted, approvals=approvals, **OPTIONS).run()
    sys.stdout.write(serializer.to_json(done))


if __name__ == "__main__":
    main(sys.argv[1])
