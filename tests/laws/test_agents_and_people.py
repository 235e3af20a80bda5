"""Agents, approvals, corrections, budgets and trimmed threads, all in one session that is cancelled anywhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
import reactivex
from reactivex import operators as rx

from rxllm import (
    Budget,
    Engine,
    Session,
    Thread,
    ToolContext,
    compact_thread,
    halt,
    serializer,
    session,
    tool,
    trim_thread,
)
from rxllm import operators as ops
from rxllm.testing import World, simulate, simulate_cancels, simulate_many
from tests.testing.simulated import engine_of, slowly, with_tools

pytestmark = pytest.mark.judges

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def paying(world: World, budget: Budget, ran: Counter[str]) -> Engine:
    """A model with two agents, each with two calls: nobody answers for one, and the other is left to the caller."""

    @tool(name="double", approval=True)
    async def double(x: int, context: ToolContext) -> int:
        """Double a number."""
        ran[context.idempotency_key] += 1
        await asyncio.sleep(0.5)
        return 2 * x

    async def approve(call: Any) -> Any:
        await asyncio.sleep(0.3 if call.arguments["x"] == 4 else 60)
        return halt("approval")

    counted = [ops.budget(budget)]
    summaries = engine_of(world.serve(slowly), operators=counted)
    compact = compact_thread(summaries, at=1, keep=1)
    inner = engine_of(world.serve(with_tools), tools=[double], operators=counted, prepare=[compact])
    agent = inner.as_tool(name="double", schema=SCHEMA, approve=approve, approve_timeout=5.0)
    trim = trim_thread(tokens=10)
    return engine_of(world.serve(with_tools), tools=[agent], operators=counted, prepare=[trim])


async def going_on(world: World) -> Any:
    ran, budget = Counter[str](), Budget(tokens=1_000_000)
    engine = paying(world, budget, ran)
    saved: list[Any] = []

    async def run(events: Any, before: Session) -> Session:
        keep = ops.finally_result(lambda turn, _: saved.append(turn), ops.to_session(before, keep_partial=True))
        await world.cancellable(events.pipe(keep, rx.count()))
        await asyncio.sleep(0)
        assert budget.spent.reserved == 0
        return serializer.from_json(serializer.to_json(saved[-1].session)) if saved else before

    def steer() -> Any:
        return reactivex.timer(1.0).pipe(rx.map(lambda _: "Only the first."))

    start = Session(thread=Thread() + "Double 21 and 4.")
    kept = await run(session.stream_start(engine, start, steer=steer()), start)
    for _ in range(4):
        if not kept.pending_tool_calls:
            break
        answers = {call.id: {"x": 5} for call in kept.pending_tool_calls}
        kept = await run(session.stream_resume(engine, kept, approvals=answers, steer=steer()), kept)
    assert all(times == 1 for times in ran.values())
    return kept.status, len(ran)


@pytest.mark.timeout(600)
@pytest.mark.judges
def test_a_session_that_is_cancelled_at_any_await_leaves_nothing_and_runs_nothing_twice() -> None:
    assert simulate(going_on, faults=()).value == ("completed", 2)
    assert len(simulate_cancels(going_on)) > 50
    simulate_many(going_on, range(20))
