"""What rxllm itself changes in a conversation costs no thought, or says what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import Engine, Fake, Session, Thread, serializer
from rxllm import operators as ops
from rxllm.durable import open_runs
from rxllm.telemetry import CallFinished
from rxllm.values import PrefixReport
from tests.adapters.anthropic.binding import BindingServer, Block, say, think, use
from tests.adapters.anthropic.test_refused_thoughts import engine, sent_thoughts

pytestmark = pytest.mark.sockets


@rxllm.tool
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


def test_a_structured_answer_after_tools_keeps_every_thought():
    @dataclass
    class Sum:
        value: int

    turns = [think("one"), use("c1", x=1, y=2)], [think("two"), say("It is 3.")], [think("three"), say('{"value": 3}')]
    with BindingServer(*turns) as server:
        options = {"tools": [add], "response_format": Sum, "structured_finalize": True}
        result = rxllm.chat(engine(server), "What is 1 + 2?", **options).run()
    assert (server.refuses, result.output_text, len(server.requests)) == ([], '{"value": 3}', 3)
    assert [sent_thoughts(body) for body in server.bodies] == [[], ["one"], ["one", "two"]]
    assert server.bodies[-1]["tool_choice"] == {"type": "none"}


def test_a_forbidden_call_keeps_every_thought_too():
    turns = [think("one"), say("It is 3.")], [think("two"), use("c1", x=1, y=2)], [think("three"), say("{}")]
    with BindingServer(*turns) as server:
        form = rxllm.json_schema("sum", {"type": "object"})
        rxllm.chat(engine(server), "1 + 2?", tools=[add], response_format=form, structured_finalize=True).run()
    assert (server.refuses, sent_thoughts(server.bodies[-1])) == ([], ["one", "two"])


def story(turn: int) -> list[Block]:
    return [think(f"t{turn}"), say(f"a{turn}")]


def ask(model: Engine, thread: Thread, *questions: str) -> Thread:
    for question in questions:
        thread = rxllm.chat(model, thread + question).run().thread
    return thread


SYSTEM = Thread((rxllm.system("Be brief."),))


def with_system(thread: Thread, text: str) -> Thread:
    return Thread((rxllm.system(text), *thread[1:]))


def test_a_changed_system_prompt_costs_the_thoughts_and_no_request():
    values: list[Any] = []
    with BindingServer(*map(story, range(4))) as server:
        model = engine(server, observers=[values.append])
        thread = with_system(ask(model, SYSTEM, "A?", "B?"), "Be long.")
        response = rxllm.generate(model, thread + "C?").run()
        assert response.message is not None
        again = rxllm.generate(model, thread + "C?" + response.message + "D?").run()
    assert (server.refuses, [sent_thoughts(body) for body in server.bodies]) == ([], [[], ["t0"], [], ["t2"]])
    left_out = {"messages.1.content.0": "system", "messages.3.content.0": "system"}
    assert response.metadata["prefix"] == PrefixReport("system", left_out)
    assert again.metadata["prefix"] == PrefixReport(None, left_out)
    told = [value.details.notes.get("prefix") for value in values if isinstance(value, CallFinished)]
    assert told == [None, None, PrefixReport("system", left_out), PrefixReport(None, left_out)]


def test_a_new_tool_is_named():
    with BindingServer(*map(story, range(4))) as server:
        thread = ask(engine(server, tools=[add]), SYSTEM, "A?")
        more = engine(server, tools=[rxllm.tool(name="sub", handler=lambda _: None), add])
        response = rxllm.generate(more, thread + "B?").run()
    assert response.metadata["prefix"] == PrefixReport("tools: sub", {"messages.1.content.0": "tools: sub"})
    assert server.refuses == []


def notes_that_differ() -> Any:
    numbers = iter(range(100))
    return lambda request: replace(request, messages=(rxllm.user(f"Note {next(numbers)}"), *request.messages))


@pytest.mark.parametrize(
    "prepare",
    [
        lambda: rxllm.trim_thread(tokens=20),
        lambda: rxllm.compact_thread(Fake("They said a lot."), at=20, keep=1),
        notes_that_differ,
    ],
)
def test_a_prepare_function_costs_thoughts_and_no_refusal(prepare: Any):
    with BindingServer(*map(story, range(9))) as server:
        thread = ask(engine(server, prepare=[prepare()]), SYSTEM, *(f"And {name}?" for name in "ABCDE"))
    assert (server.refuses, len(server.requests)) == ([], 5)
    assert len(thread) == 11


def test_redacted_thinking_is_not_sent_as_if_it_was_signed():
    turns = [think("one"), say("So."), think("my key is k1"), say("Well."), think("three"), say("A.")], story(1)
    with BindingServer(*turns) as server:
        model = engine(server, operators=[ops.redact("k1")])
        ask(model, SYSTEM, "A?", "B?")
    assert (server.refuses, sent_thoughts(server.bodies[-1])) == ([], ["one"])


@pytest.mark.parametrize("mode", ["leave_out", "drop_block"])
def test_what_was_refused_once_is_not_sent_again(mode: str):
    with BindingServer(*map(story, range(9))) as server:
        model = engine(server, params={"options": {"refused_thoughts": mode}})
        thread = ask(model, SYSTEM, "A?", "B?")
        without_digests = Thread(tuple(replace(message, metadata={}) for message in with_system(thread, "Be long.")))
        ask(model, without_digests, "C?", "D?", "E?")
    assert server.refuses == [(1, 0)]
    assert sent_thoughts(server.bodies[-1]) == ["t2", "t3"]


def test_what_the_server_drops_is_told():
    binding = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    with BindingServer(*map(story, range(9))) as server:
        model = engine(server, params={"options": {"thinking": binding}})
        thread = with_system(ask(model, SYSTEM, "A?"), "Be long.")
        response = rxllm.generate(model, thread + "B?").run()
    (dropped,) = response.metadata["input_transformations"]
    assert (dropped["path"], dropped["reason"]) == ("messages.1.content.0", "prefix_binding_mismatch")
    assert sent_thoughts(server.bodies[-1]) == ["t0"]


def test_a_session_in_json_keeps_every_thought():
    with BindingServer(*map(story, range(4))) as server:
        session = rxllm.session.start(engine(server), "A?").run().session
        for question in ("B?", "C?"):
            session = serializer.from_json(serializer.to_json(session), Session)
            session = rxllm.session.reply(engine(server), session, question).run().session
    assert (server.refuses, sent_thoughts(server.bodies[-1])) == ([], ["t0", "t1"])


def test_a_durable_run_keeps_every_thought(tmp_path: Path):
    with BindingServer([think("one"), use("c1", x=1, y=2)], story(1), story(2)) as server:
        factories = {"chat": lambda thread: rxllm.stream(engine(server, tools=[add]), thread)}
        thread = SYSTEM
        for question in ("A?", "B?"):
            with open_runs(tmp_path / "runs.db", factories) as runs:
                thread = runs.result(runs.start("chat", thread + question).run()).run().thread
    assert (server.refuses, sent_thoughts(server.bodies[-1])) == ([], ["one", "t1"])


@rxllm.tool(approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


def test_agents_two_deep_keep_every_thought_while_they_wait():
    calls = [[think(name), use(name, name, prompt="Go")] for name in ("outer", "inner")]
    turns = (*calls, [think("pay"), use("p1", "pay")], story(3), story(4), story(5))
    with BindingServer(*turns) as server:
        inner = engine(server, tools=[pay]).as_tool(name="inner")
        outer = engine(server, tools=[inner]).as_tool(name="outer")
        model = engine(server, tools=[outer])
        halted = rxllm.chat(model, SYSTEM + "Go").run()
        (waiting,) = halted.pending_tool_calls
        halted = serializer.from_json(serializer.to_json(halted), rxllm.ChatResult)
        result = rxllm.resume(model, halted, approvals={waiting.id: True}).run()
    assert (server.refuses, result.output_text) == ([], "a5")
    assert [sent_thoughts(body) for body in server.bodies[3:]] == [["pay"], ["inner"], ["outer"]]
