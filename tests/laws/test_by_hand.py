"""Laws: generate, step and chat are the pipes that docs/by_hand.md shows."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import Engine, Request, Thread, operators, user
from rxllm.runtime import Stream
from rxllm.values import Call
from tests.examples import examples
from tests.laws import scripts
from tests.laws.support import AT_ONCE, engine, events_of, law, outcome, unordered

PAGE = (Path(__file__).parents[2] / "docs" / "by_hand.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
hand: dict[str, Any] = {}
exec(BLOCKS[0], hand)

THREAD = Thread((user("Hi"),), {"mine": True})
SCHEMA = rxllm.json_schema("answer", {"type": "object"})
TURNS = ("max_turns", "halt_when")
DENIED = "no more tools can be called; provide the final structured response"

budgets = st.none() | st.integers(1, 120)


def budgeted(script: Any, tokens: int | None) -> Engine:
    return engine(script) if tokens is None else engine(script).with_operators(operators.budget(tokens=tokens))


def same(facade: Stream[Any], by_hand: Stream[Any], options: dict[str, Any]) -> None:
    """Equal events; those of tools that run side by side come in any order."""
    events, others = events_of(facade), events_of(by_hand)
    if options.get("max_concurrency") == 1:
        assert events == others
    assert unordered(events) == unordered(others)
    assert events[-1:] == others[-1:]


def test_the_page_says_what_it_prints_and_is_as_short_as_it_claims() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec("\n".join(BLOCKS), {})
    assert printed.getvalue() == "".join(re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL))
    lines = [line for line in BLOCKS[0].splitlines() if line.strip() and "import" not in line]
    assert len(lines) <= 12


@law
@given(scripts.scripts, budgets)
def test_generate_by_hand(script: Any, tokens: int | None) -> None:
    """Law: generate = stream_generate |> to_response."""
    facade = rxllm.generate(budgeted(script, tokens), THREAD)
    assert outcome(facade) == outcome(hand["generate"](budgeted(script, tokens), THREAD))


@law
@given(scripts.scripts, scripts.step_options, budgets)
def test_a_step_by_hand(script: Any, options: Any, tokens: int | None) -> None:
    """Law: step = stream_generate |> run_tools |> to_step_result."""
    facade = rxllm.stream_step(budgeted(script, tokens), THREAD, **options)
    same(facade, hand["stream_step"](budgeted(script, tokens), THREAD, **options), options)
    result = outcome(rxllm.step(budgeted(script, tokens), THREAD, **options))
    assert result == outcome(hand["step"](budgeted(script, tokens), THREAD, **options))


@pytest.mark.judges
@settings(law, max_examples=examples(400))
@given(scripts.scripts, scripts.chat_options, budgets)
def test_a_chat_by_hand(script: Any, options: Any, tokens: int | None) -> None:
    """Law: chat = steps |> repeat_until_halt |> to_chat_result: tools, halts, errors, cuts, retries, budgets."""
    until = {name: options[name] for name in TURNS if name in options}
    tools = {name: value for name, value in options.items() if name not in TURNS}
    facade = rxllm.stream(budgeted(script, tokens), THREAD, **options)
    same(facade, hand["stream"](budgeted(script, tokens), THREAD, until, **tools), options)
    result = outcome(rxllm.chat(budgeted(script, tokens), THREAD, **options))
    assert result == outcome(hand["chat"](budgeted(script, tokens), THREAD, until, **tools))


@law
@given(scripts.scripts, scripts.chat_options)
def test_two_passes_by_hand(script: Any, options: Any) -> None:
    """Law: a structured answer in two passes = repeat_until_halt with finalize."""
    options = {**options, "max_concurrency": 1}
    tools = {name: value for name, value in options.items() if name not in TURNS}
    model = engine(script)

    def finalize(thread: Thread) -> Stream[Any]:
        asked = thread.add_user("And now?")
        denied = [replace(tool, approval=True, manual=False, eager=False) for tool in model.tools]
        denying = {"approve": lambda call: DENIED, "mode": "auto", "on_tool_error": "continue", "eager": False}
        return rxllm.stream_generate(model, asked, response_format=SCHEMA, tool_choice="none").pipe(
            operators.run_tools(denied, thread=asked, **{**tools, **denying})
        )

    until = {name: options[name] for name in TURNS if name in options} | {"finalize": finalize, "parse": SCHEMA}
    two = {"response_format": SCHEMA, "structured_finalize": True, "structured_finalize_nudge": "And now?"}
    facade = rxllm.stream(engine(script), THREAD, **options, **two)  # type: ignore[arg-type]
    same(facade, hand["stream"](model, THREAD, until, **tools), options)


@law
@given(scripts.scripts)
def test_an_answer_by_hand(script: Any) -> None:
    """Law: stream_generate = adapter.stream |> retry_before_content."""
    request = Request(THREAD.messages, tools=tuple(scripts.TOOLS))
    answer = Stream.of(scripts.fake(script).stream(request, Call(raw=True)))
    by_hand = answer.pipe(operators.retry_before_content(AT_ONCE))
    facade = rxllm.stream_generate(engine(script), THREAD, include_raw_chunks=True)
    assert events_of(facade) == events_of(by_hand)
