"""Halted chats and sessions, written as JSON by one process and completed by another.

``python resumable.py ask MODEL`` prints, for each of `CASES`, the halted chat and the halted session;
``python resumable.py answer MODEL`` reads that and prints them completed, then how often money was paid.
"""

from __future__ import annotations

import sys
from typing import Any

import rxllm
from rxllm import ChatResult, Fake, ToolCall, ask_user, serializer, session, tool
from rxllm.pipelines import resume
from rxllm.values import Session

PAID: list[int] = []


@tool
def choose(kind: str = "city") -> Any:
    """Ask the user which city they mean."""
    return ask_user("Which city do you mean?", kind=kind)


@tool(approval=True)
def pay(amount: int = 5) -> str:
    """Pay an amount of money."""
    PAID.append(amount)
    return f"paid {amount}"


SCHEMA = {"type": "object", "properties": {"document": {"type": "string"}}, "required": ["document"]}
sign = tool(name="sign", description="Sign a document.", schema=SCHEMA, manual=True)

CASES = {
    "ask_user": (choose, "Which city is it? Ask me."),
    "manual_tool_calls": (sign, "Sign the document called contract."),
    "approval": (pay, "Pay 5 coins."),
}
ANSWERS: dict[str, Any] = {
    "manual_tool_calls": {"results": {"call_0": "signed"}},
    "approval": {"approvals": {"call_0": True}},
}
OPTIONS: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60}


def engine(model: str, name: str) -> Any:
    called = ToolCall("call_0", name, {"document": "contract"} if name == "sign" else {})
    return Fake(lambda request: called if len(request.messages) == 1 else "All done.") if model == "fake" else model


def ask(model: str, reason: str) -> list[Any]:
    given, question = CASES[reason]
    options = {**OPTIONS, "tools": [given]}
    begun = Session("s1").append_user(question)
    chat = rxllm.chat(engine(model, given.name), question, **options).run()
    return [chat, session.start(engine(model, given.name), begun, **options).run().session]


def answer(model: str, reason: str, chat: ChatResult, waiting: Session) -> list[Any]:
    given, _ = CASES[reason]
    options = {**OPTIONS, "tools": [given]}
    asked = engine(model, given.name)
    if reason == "ask_user":
        options["tool_choice"] = "none"  # the small model would ask for ever
        done = rxllm.chat(asked, chat.thread.add_user("Paris"), **options).run()
        return [done, session.reply(asked, waiting, "Paris", **options).run().session]
    done = resume(asked, chat, **ANSWERS[reason], **options).run()
    return [done, session.resume(asked, waiting, **ANSWERS[reason], **options).run().session]


def main(what: str, model: str) -> None:
    made: list[Any] = []
    given = iter(serializer.from_json(sys.stdin.read()) if what == "answer" else ())
    for reason in CASES:
        made += ask(model, reason) if what == "ask" else answer(model, reason, next(given), next(given))
    sys.stdout.write(serializer.to_json([*made, Session(metadata={"paid": len(PAID)})]))


if __name__ == "__main__":
    main(*sys.argv[1:])
