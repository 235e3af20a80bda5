"""The stages of a call: which are there, and in which order they see an event."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reactivex import throw

import rxllm
from rxllm import Budget, Engine, Fake, Request, Timeouts, Usage, models, user
from rxllm import operators as ops
from rxllm.events import TextDelta
from rxllm.pipelines._call import stages
from rxllm.pipelines._setup import Setup
from rxllm.pipelines.options import GenerateOptions
from rxllm.runtime import EngineCall, Scope, Share, within
from rxllm.telemetry import CallStarted, FirstToken, RetryAttempt
from rxllm.values import Call, ModelInfo
from tests.operators.journal import MemoryJournal

REQUEST = Request((user("Hi"),), model="m")
AT_ONCE = {"base_delay": 0, "jitter": 0}


@pytest.fixture(autouse=True)
def priced() -> Iterator[None]:
    models.put(ModelInfo("fake:m", input_price=1.0, output_price=1.0))
    yield
    models.clear()


def names(engine: Engine, request: Request = REQUEST, **options: Any) -> list[str]:
    setup, call = Setup.of(engine, GenerateOptions, options), Call(request_id="r1")
    engine_call = EngineCall(request, call, lambda engine, model=None: throw(RuntimeError()), "fake", Usage())
    return [name for name, _ in stages(setup, request, call, engine_call)]


def test_a_stage_without_its_setting_is_absent() -> None:
    assert names(Engine(Fake("Hi")), Request((user("Hi"),))) == ["retry"]
    assert names(Engine(Fake("Hi")), timeout=Timeouts(total=3)) == ["retry", "total timeout", "cost"]
    assert names(Engine(Fake("Hi")), timeout=Timeouts(idle=3)) == ["timeouts", "retry", "cost"]


def test_all_stages_are_in_their_order() -> None:
    own = [ops.raise_errors(), lambda events: events]
    engine = Engine(Fake("Hi"), operators=own, observers=[lambda value: None], errors="raise")
    with within(Scope(journal=MemoryJournal(), shares=(Share(Budget(tokens=100)),))):
        found = names(engine, timeout=Timeouts(first=1, idle=2, total=3), on_event=print)
    assert found == [
        "timeouts",
        "retry",
        "total timeout",
        "cost",
        "watch",
        "journal",
        "scope",
        "budget",
        "operators",
        "operators",
        "raise errors",
        "on_event",
    ]


def test_an_event_is_seen_by_observers_then_operators_then_on_event() -> None:
    seen: list[str] = []

    def note(name: str) -> Any:
        return lambda value: seen.append(name) if isinstance(value, TextDelta | FirstToken) else None

    operators = [ops.tap(note("first operator")), ops.tap(note("second operator"))]
    engine = Engine(Fake("Hi"), operators=operators, observers=[note("observer")])
    rxllm.generate(engine, "Hi", on_event=note("on_event")).run()
    assert seen == ["observer", "first operator", "second operator", "on_event"]


def test_a_retry_is_seen_by_observers_and_by_no_operator() -> None:
    told: list[Any] = []
    events: list[Any] = []
    model = Fake(scripts=[[("error", "timeout")], ["Hi"]])
    engine = Engine(model, operators=[ops.tap(events.append)], observers=[told.append], retry=AT_ONCE)
    rxllm.generate(engine, "Hi").run()
    assert [type(value) for value in told[:2]] == [CallStarted, RetryAttempt]
    assert sum(isinstance(value, CallStarted) for value in told) == 1
    assert not [event for event in events if isinstance(event, rxllm.ErrorEvent)]


def test_an_answer_from_a_journal_has_its_costs_and_no_call_and_passes_the_operators() -> None:
    journal, told, texts = MemoryJournal(), [], []
    for run in (1, 2):
        engine = Engine(
            Fake(["Hi", Usage(1_000_000, 0)]),
            model="m",
            operators=[ops.tap(lambda event: texts.append(event.text), rxllm.TextCompleted)],
            observers=[told.append],
        )
        answer = rxllm.stream_generate(engine, "Hi").pipe(ops.journaled(journal), ops.to_response()).run()
        assert (answer.usage.total_cost, len(texts)) == (1.0, run)
        journal = MemoryJournal(journal.entries)
    assert sum(isinstance(value, CallStarted) for value in told) == 1


def entered(engine: Engine) -> set[str]:
    """Return the names of the files of Python functions that a call of `engine` calls."""
    files: set[str] = set()

    async def ask() -> None:
        await rxllm.generate(engine, "Hi")  # the first call computes what all calls share
        sys.setprofile(lambda frame, kind, _: files.add(Path(frame.f_code.co_filename).name))
        try:
            await rxllm.generate(engine, "Hi")
        finally:
            sys.setprofile(None)

    asyncio.run(ask())
    return files


def test_a_call_does_not_enter_what_it_does_not_use() -> None:
    edges = {"_prepare.py", "_budget.py", "_cost.py", "_time_limits.py", "_observers.py"}
    assert entered(Engine(Fake("Hi"))) & edges == set()
    own: dict[str, Any] = {"prepare": [lambda request: request], "operators": [ops.budget(tokens=100)]}
    engine = Engine(Fake("Hi"), **own, observers=[lambda value: None], params={"timeout": 9.0})
    assert edges - entered(engine) == set()
