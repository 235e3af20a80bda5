"""The system prompts of an engine and of a call: sent before the thread, and never a part of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, Engine, EngineError, Fake, Request, Thread, ToolCall, ToolContext, session, system, tool
from rxllm import operators as ops

CALLS: dict[str, Any] = {
    "generate": rxllm.generate,
    "step": rxllm.step,
    "chat": rxllm.chat,
    "stream_generate": rxllm.stream_generate,
    "stream_step": rxllm.stream_step,
    "stream": rxllm.stream,
    "generate_many": lambda engine, thread, **opts: rxllm.generate_many(engine, [thread], **opts),
    "session.start": session.start,
    "session.stream_start": session.stream_start,
}


def texts(request: Request) -> list[str]:
    return [message.text for message in request.messages]


@pytest.mark.parametrize("name", CALLS)
def test_the_engine_s_prompt_the_call_s_and_the_thread_s_are_one_leading_run(name: str) -> None:
    fake = Fake("Hello")
    engine = Engine(fake, system="engine", params={"max_tokens": 9})
    CALLS[name](engine, Thread() + system("thread") + "Hi", system="call").run()
    assert texts(fake.requests[0]) == ["engine", "call", "thread", "Hi"]
    assert [message.role for message in fake.requests[0].messages] == ["system", "system", "system", "user"]


@pytest.mark.parametrize(
    ("settings", "option", "sent"),
    [
        ({}, {}, ["Hi"]),
        ({"system": "a"}, {}, ["a", "Hi"]),
        ({}, {"system": "b"}, ["b", "Hi"]),
        ({"params": {"system": "a"}}, {}, ["a", "Hi"]),
        ({"params": {"system": "a"}}, {"system": "b"}, ["b", "Hi"]),
        ({"system": "a"}, {"system": None}, ["a", "Hi"]),
        ({"system": ""}, {"system": ""}, ["Hi"]),
    ],
)
def test_each_is_left_out_where_there_is_none(settings: Any, option: Any, sent: list[str]) -> None:
    fake = Fake("Hello")
    rxllm.generate(Engine(fake, **settings), "Hi", **option).run()
    assert texts(fake.requests[0]) == sent


def test_it_stays_out_of_the_thread_and_does_not_pile_up_over_turns() -> None:
    fake = Fake("One.", "Two.", "Three.")
    engine = Engine(fake, system="Be brief.")
    turn = session.start(engine, "1", system="Count.").run()
    for text in ("2", "3"):
        turn = session.reply(engine, turn.session, text, system="Count.").run()
    assert [texts(request)[:3] for request in fake.requests] == [["Be brief.", "Count.", "1"]] * 3
    assert [message.role for message in turn.session.thread] == ["user", "assistant"] * 3


def test_a_thread_that_already_begins_with_the_prompts_is_sent_as_it_is() -> None:
    fake = Fake("Hello")
    rxllm.generate(Engine(fake, system="a"), [system("a"), system("b"), rxllm.user("Hi")], system="b").run()
    assert texts(fake.requests[0]) == ["a", "b", "Hi"]


def test_each_step_has_it_and_the_final_step_too() -> None:
    @tool
    def look() -> str:
        return "seen"

    fake = Fake(ToolCall("c1", "look"), "Done.", '{"value": true}')
    options: dict[str, Any] = {"response_format": bool, "structured_finalize": True}
    result = rxllm.chat(Engine(fake, system="a", tools=[look]), "Hi", system="b", **options).run()
    assert [texts(request)[:3] for request in fake.requests] == [["a", "b", "Hi"]] * 3
    assert "system" not in {message.role for message in result.thread}


def test_keys_of_tool_calls_do_not_depend_on_it() -> None:
    keys: list[str] = []

    @tool
    def look(context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        return "seen"

    for engine_prompt, call_prompt in ((None, None), ("a", None), (None, "b"), ("a", "b")):
        engine = Engine(Fake(ToolCall("c1", "look"), "Done."), tools=[look], system=engine_prompt)
        rxllm.chat(engine, "Hi", system=call_prompt).run()
    assert len(keys) == 4
    assert len({*keys}) == 1


def test_a_batch_s_journal_holds_the_answers_whatever_the_prompt(tmp_path: Path) -> None:
    journal, other = tmp_path / "answers.jsonl", Fake("Bye")
    rxllm.generate_many(Engine(Fake("Hello"), system="a"), ["Hi"], journal=journal).run()
    (response,) = rxllm.generate_many(Engine(other, system="b"), ["Hi"], journal=journal, system="c").run()
    assert (response.output_text, other.requests) == ("Hello", [])


def test_functions_that_prepare_the_request_see_it() -> None:
    fake, seen = Fake("Hello"), list[list[str]]()
    thread = Thread() + "A long story. " * 50 + rxllm.assistant("Well. " * 50) + "Bye"
    prepare = [lambda request: seen.append(texts(request)) or request, rxllm.trim_thread(tokens=40)]
    rxllm.chat(Engine(fake, system="Be brief.", prepare=prepare), thread).run()
    assert seen[0][0] == "Be brief."
    assert texts(fake.requests[0]) == ["Be brief.", "Bye"]


DOWN = AdapterError("unknown")


@pytest.mark.parametrize(
    ("first", "call", "other", "sent"),
    [
        ({"system": "first"}, {}, {"system": "other"}, ["first", "Hi"]),
        ({}, {"system": "call"}, {"system": "other"}, ["call", "Hi"]),
        ({"system": "first"}, {"system": "call"}, {"params": {"system": "other"}}, ["first", "call", "Hi"]),
        ({}, {}, {"system": "other"}, ["other", "Hi"]),
        ({"system": ""}, {}, {"system": "other"}, ["Hi"]),
    ],
)
def test_an_engine_that_answers_instead_has_the_caller_s_or_its_own(
    first: Any, call: Any, other: Any, sent: list[str]
) -> None:
    last = Fake("Hello")
    middle = Engine(Fake(DOWN), operators=[ops.fallback(Engine(last, **other))], **other)
    engine = Engine(Fake(DOWN), operators=[ops.fallback(middle)], retry=False, **first)
    rxllm.generate(engine, "Hi", retry=False, **call).run()
    assert texts(middle.adapter.requests[0]) == sent
    assert texts(last.requests[0]) == sent


def test_an_agent_has_its_engine_s_and_its_own() -> None:
    poet = Fake("Roses.")
    agent = Engine(poet, system="engine").as_tool(name="poet", system="agent")
    rxllm.chat(Engine(Fake(ToolCall("c1", "poet", {"prompt": "On roses"}), "Done."), tools=[agent]), "Hi").run()
    assert texts(poet.requests[0]) == ["engine", "agent", "On roses"]


def test_its_tokens_are_counted_once() -> None:
    engine = Engine(Fake("Hello"), system="Be very brief.")
    with_prompt = rxllm.count_tokens(engine, "Hi").run().tokens
    assert with_prompt > rxllm.count_tokens(Fake("Hello"), "Hi").run().tokens
    assert with_prompt == rxllm.count_tokens(engine, [system("Be very brief."), rxllm.user("Hi")]).run().tokens


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(EngineError, match="an engine's system must be a string"):
        Engine(Fake("Hello"), system=system("Be brief."))  # type: ignore[arg-type]
    with pytest.raises(rxllm.ValidationError, match="system must be a string"):
        rxllm.generate(Fake("Hello"), "Hi", system=["Be brief."])  # type: ignore[arg-type]
    with pytest.raises(rxllm.ValidationError, match="system must be a string"):
        Engine(Fake("Hello")).as_tool(name="poet", system=3)  # type: ignore[arg-type]


def test_concurrent_calls_of_an_engine_keep_their_own() -> None:
    fake = Fake("Hello", "Hello")
    engine = Engine(fake, system="engine")

    async def ask() -> None:
        await asyncio.gather(*(rxllm.generate(engine, text, system=text) for text in ("a", "b")))

    asyncio.run(ask())
    assert sorted(map(texts, fake.requests)) == [["engine", "a", "a"], ["engine", "b", "b"]]
