"""Law: a veto changes only what the model would have written after it.

For every script: the calls before the vetoed one have the results that late tools would have had, the vetoed call has
its refusal, and nothing after it is in the thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import StreamCollector, ToolError, halt, serializer, tool
from rxllm import operators as ops
from rxllm.events import Event, StepCompleted, TextDelta, ToolCallCompleted, ToolCallDelta, ToolCallStarted
from rxllm.values import StepResult, Tool
from tests.examples import examples
from tests.waiting import PATIENCE

turns = st.integers(0, 3)
"""How long a model or a tool pauses, in turns of the loop."""

texts = st.tuples(st.just("text"), st.sampled_from(["So. ", "Well. "]))
calls = st.tuples(st.sampled_from(["look", "fail", "wait"]), turns)
dictations = st.tuples(st.sampled_from(["save", "save", "save_all"]), st.integers(0, 12))
refusals = st.sampled_from(["raise", "bug", "halt", "keep"])
policies = st.sampled_from(["continue", "halt", lambda call, error: "replaced"])
scripts = st.lists(st.one_of(texts, calls, dictations), min_size=1, max_size=5)

LONG = 60


async def pause(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def writing(script: list[tuple[str, Any]], pauses: int) -> Any:
    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        for number, (kind, what) in enumerate(script):
            id = f"c{number}"
            if kind == "text":
                yield TextDelta(what)
                continue
            arguments = {"turns": what, "text": "x" * LONG} if kind.startswith("save") else {"turns": what}
            raw = json.dumps(arguments)
            yield ToolCallStarted(id, kind)
            for piece in [raw[:-LONG], *raw[-LONG:]] if kind.startswith("save") else [raw]:
                yield ToolCallDelta(id, piece)
                await pause(1 + pauses)
            yield ToolCallCompleted(id, kind, arguments, raw)
            await pause(pauses)

    return model


def tools_of(refusal: str, reads: int) -> list[Tool]:
    """Tools that are eager, one of which reads some pieces and then refuses."""

    async def look(turns: int) -> str:
        await pause(turns)
        return f"seen {turns}"

    async def fail(turns: int) -> str:
        await pause(turns)
        raise ToolError("handler_raised", "no")

    async def wait(turns: int) -> str:
        await pause(turns * 40)
        return "waited"

    async def save(turns: int, text: rxllm.Stream[str]) -> Any:
        count = 0
        async for piece in text:
            count += len(piece)
            if count > reads and refusal != "keep":
                await pause(turns)
                if refusal == "halt":
                    return halt("enough")
                raise ToolError("handler_raised", "not there") if refusal == "raise" else ValueError("a bug")
        return "saved"

    async def save_all(turns: int, text: rxllm.Stream[str]) -> str:
        return "".join([piece async for piece in text])

    return [tool(eager=True)(function) for function in (look, fail, wait, save, save_all)]  # type: ignore[arg-type]


def played(model: Any, tools: list[Tool], **options: Any) -> list[Event]:
    return list(rxllm.stream_step(model, "Hi", tools=tools, timeout=PATIENCE, **options).pipe(ops.verify()))


def step_of(events: list[Event]) -> StepResult:
    assert isinstance(events[-1], StepCompleted)
    return events[-1].result


@settings(deadline=None, max_examples=examples(150))
@given(scripts, refusals, st.integers(0, 4), turns, policies, st.sampled_from([None, None, 1, 2]))
def test_a_veto_changes_only_what_follows_it(
    script: Any, refusal: str, reads: int, pauses: int, policy: Any, most: int | None
) -> None:
    tools, options = tools_of(refusal, reads), {"on_tool_error": policy, "max_concurrency": most}
    events = played(writing(script, pauses), tools, **options)
    found, late = step_of(events), step_of(played(writing(script, pauses), tools, eager=False, **options))
    if found.response.raw_finish_reason != "vetoed":
        assert found == late
        return
    *before, vetoed = found.response.tool_calls
    expected = {message.tool_call_id: message.text for message in late.tool_results}
    assert {message.tool_call_id: message.text for message in found.tool_results} == {
        call.id: expected[call.id] for call in found.response.tool_calls
    }
    assert [call.id for call in found.response.tool_calls] == [
        call.id for call in late.response.tool_calls[: len(before) + 1]
    ]
    assert list(before) == list(late.response.tool_calls[: len(before)])
    assert vetoed.arguments == {"turns": late.response.tool_calls[len(before)].arguments["turns"]}
    assert late.response.output_text.startswith(found.response.output_text)
    assert found.thread[-1 - len(before) - 1].tool_calls[-1].raw_arguments is None
    check_fold(events)


def check_fold(events: list[Event]) -> None:
    state = StreamCollector(rxllm.Thread((rxllm.user("Hi"),)))
    for event in events[:-1]:
        state = state.apply_event(event)
    assert state.to_step_result() == step_of(events)
    assert serializer.from_json(serializer.to_json(events)) == events
