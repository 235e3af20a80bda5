"""A process that produces a run and kills itself at a point of it; its factories go on in the test's process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import rxllm
from rxllm import Budget, Engine, Fake, Request, ToolCall, tool
from rxllm import operators as ops
from rxllm.durable import open_runs, open_store
from tests.durable import kill_points
from tests.durable.kill_points import add, effect, interposed

LEASE = 0.5
GO = {"prompt": "Go"}


@tool
def note(text: str) -> str:
    return effect("note", f"note {text}")


@tool(idempotent=True)
def stamp(text: str) -> str:
    return effect("stamp", f"stamp {text}")


@tool(approval=True)
async def pay(amount: int) -> str:
    return effect("pay", f"pay {amount}")


@tool
def deep_note(text: str) -> str:
    return effect("deep_note", f"note {text}")


def calls_done(request: Request) -> int:
    add("asked", f"{request.messages[-1].text}\n")
    return sum(message.role == "tool" for message in request.messages)


def said(*items: Any) -> list[Any]:
    return [entry for item in items for entry in (item, ("delay", 0.015))]


def outer(request: Request) -> Any:
    calls = [ToolCall("c0", "note", {"text": "outside"}), ToolCall("c1", "stamp", {"text": "x"})]
    turns: dict[int, Any] = {
        0: [*said("I ", "take ", "notes. "), *calls, ToolCall("c2", "helper", GO)],
        3: [*said("Now ", "I pay. "), ToolCall("c3", "pay", {"amount": 500})],
        4: said("All ", "is ", "done. ", "Bye!"),
    }
    return turns[calls_done(request)]


def middle(request: Request) -> Any:
    return said("The ", "middle. ") if calls_done(request) else [*said("Deeper. "), ToolCall("c0", "deep", GO)]


def inner(request: Request) -> Any:
    call = ToolCall("c0", "deep_note", {"text": "inside"})
    return said("The ", "depth. ") if calls_done(request) else [*said("I note. "), call]


def approve(call: ToolCall) -> Any:
    effect("approve", f"approved {call.name}")
    return {"amount": 5}


def passes(text: str) -> None:
    add("passed", text)


def build_chat(input: dict[str, Any]) -> Any:
    deep = Engine(Fake(inner), tools=[deep_note]).as_tool(name="deep", description="Goes deep.")
    helper = Engine(Fake(middle), tools=[deep]).as_tool(name="helper", description="Helps.")
    operators = [ops.guard(passes), ops.budget(Budget(tokens=100_000))]
    engine = Engine(Fake(outer), tools=[note, stamp, pay, helper], operators=operators)
    options: dict[str, Any] = {"approve": approve, "max_concurrency": 1}
    if "resume" in input:
        answers = {name: input[name] for name in ("approvals", "results")}
        return rxllm.stream_resume(engine, input["resume"], **answers, **options)
    return rxllm.stream(engine, input["ask"], **options)


FACTORIES = {"chat": build_chat}


def crash(pipe: object, folder: Path, point: str) -> None:
    """Produce the run in a process that dies at the point, see ``tests.durable.kill_points``."""
    kill_points.FOLDER, kill_points.POINT = folder, point

    async def main() -> None:
        store = interposed(open_store(folder / "runs.db"))
        async with open_runs(store, FACTORIES, flush_after=0.01, lease=LEASE) as runs:
            await runs.result(await runs.start("chat", {"ask": "Go!"}, id="run"))

    asyncio.run(main())
