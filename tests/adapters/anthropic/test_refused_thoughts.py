"""A request whose thoughts are refused is sent once more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, Engine, Thread, ValidationError
from rxllm.adapters import Anthropic, Vertex
from rxllm.telemetry import CallFinished, RetryAttempt
from rxllm.testing.loopback import Loopback, Reply
from rxllm.testing.loopback import Request as Received
from rxllm.values import ThinkingPart
from tests.adapters.anthropic.binding import BETA, HIDDEN, MODEL, BindingServer, Block, failure, frames, say, think
from tests.adapters.anthropic.sdk import check
from tests.adapters.anthropic.support import frame

pytestmark = pytest.mark.sockets

TURNS = ([think("one"), say("Hello.")], [think("two"), HIDDEN, say("Fine.")], [think("three"), say("Bye.")])


def engine(server: Loopback, **fields: Any) -> Engine:
    adapter = Anthropic(api_key="k", base_url=server.url + "/v1")
    return Engine(adapter, **{"model": MODEL, "errors": "raise", "retry": False, **fields})


def thoughts(thread: Thread) -> list[str]:
    return [part.text for message in thread for part in message.parts if isinstance(part, ThinkingPart)]


def sent_thoughts(body: Block) -> list[str]:
    blocks = [block for message in body["messages"] for block in message["content"] if isinstance(block, dict)]
    return [block.get("thinking", "hidden") for block in blocks if "thinking" in block["type"]]


def without_notes(thread: Thread) -> Thread:
    """Return the thread as another program might have kept it: without the metadata of its messages."""
    return Thread(tuple(replace(message, metadata={}) for message in thread))


def talk(model: Engine, *questions: str, system: str = "Be brief.") -> Thread:
    thread = Thread((rxllm.system(system),))
    for question in questions:
        thread = rxllm.chat(model, thread + question).run().thread
    return without_notes(thread)


def with_system(thread: Thread, text: str) -> Thread:
    return Thread((rxllm.system(text), *thread[1:]))


def test_a_changed_system_prompt_costs_the_thoughts_and_one_more_request():
    values: list[Any] = []
    with BindingServer(*TURNS) as server:
        model = engine(server, observers=[values.append])
        thread = with_system(talk(model, "Hi", "How are you?"), "Be long.") + "Bye"
        values.clear()
        result = rxllm.chat(model, thread).run()
    assert (server.refuses, sent_thoughts(server.accepted[-1]), len(server.requests)) == ([(1, 0)], [], 4)
    assert thoughts(result.thread) == ["one", "two", "", "three"]
    assert result.final_response is not None
    note = result.final_response.metadata["refused_thoughts"]
    assert note["left_out"] == ["messages.1.content.0", "messages.3.content.0", "messages.3.content.1"]
    assert "bound to a different conversation" in note["error"]
    (retry,) = (value for value in values if isinstance(value, RetryAttempt))
    (finished,) = (value for value in values if isinstance(value, CallFinished))
    assert (retry.attempt, retry.id) == (1, finished.id)
    assert "bound to a different conversation" in str(retry.error)
    assert (finished.outcome, finished.details.attempts) == ("completed", 2)


def test_the_thoughts_before_the_first_refused_one_are_sent_again():
    with BindingServer(*TURNS) as server:
        model = engine(server)
        before = talk(model, "Hi", "How are you?")
        thread = Thread((*before[:3], rxllm.user("How is it?"), *before[4:])) + "Bye"
        rxllm.chat(model, thread).run()
    assert (server.refuses, sent_thoughts(server.accepted[-1])) == ([(3, 0)], ["one"])


def test_a_conversation_goes_on_after_a_refusal():
    with BindingServer(*TURNS) as server:
        model = engine(server)
        thread = with_system(talk(model, "Hi", "How are you?"), "Be long.")
        for question in ("Bye", "Bye!"):
            thread = rxllm.chat(model, thread + question).run().thread
    assert thread.last is not None
    assert (thread.last.text, thoughts(thread)) == ("Bye.", ["one", "two", "", "three", "three"])


def test_the_server_drops_them_if_the_option_says_so():
    with BindingServer(*TURNS) as server:
        model = engine(server, params={"options": {"refused_thoughts": "drop_block"}})
        thread = with_system(talk(model, "Hi", "How are you?"), "Be long.") + "Bye"
        response = rxllm.generate(model, thread).run()
    binding = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    assert (server.refuses, server.accepted[-1]["thinking"]) == ([(1, 0)], binding)
    assert server.requests[-1].headers["anthropic-beta"] == BETA
    assert response.metadata["refused_thoughts"]["left_out"] == []


@pytest.mark.parametrize("effort", ["high", None])
def test_the_setting_joins_the_form_of_thinking_that_the_request_has(effort: str | None):
    with BindingServer(*TURNS) as server:
        model = engine(server, params={"options": {"refused_thoughts": "drop_block", "betas": ["x-1"]}})
        thread = with_system(talk(model, "Hi"), "Be long.") + "Bye"
        rxllm.generate(model, thread, reasoning_effort=effort).run()
    first, last = server.bodies[-2:]
    assert last["thinking"] == {
        **first.get("thinking", {"type": "adaptive"}),
        "block_binding": {"prefix_mismatch_behavior": "drop_block"},
    }
    assert server.requests[-1].headers["anthropic-beta"] == f"x-1,{BETA}"


def test_thoughts_are_left_out_if_the_server_cannot_drop_them_since_thinking_is_off():
    with BindingServer(*TURNS) as server:
        model = engine(server, params={"options": {"refused_thoughts": "drop_block"}})
        thread = with_system(talk(model, "Hi"), "Be long.") + "Bye"
        rxllm.generate(model, thread, reasoning_effort="none").run()
    assert (sent_thoughts(server.accepted[-1]), server.accepted[-1]["thinking"]) == ([], {"type": "disabled"})


@pytest.mark.parametrize("mode", ["leave_out", "drop_block"])
def test_an_altered_thought_is_left_out(mode: str):
    with BindingServer(*TURNS) as server:
        model = engine(server, params={"options": {"refused_thoughts": mode}})
        hello, answer = talk(model, "Hi")[1:]
        thought, text = answer.parts
        assert isinstance(thought, ThinkingPart)
        altered = replace(answer, content=(replace(thought, text="won"), text))
        rxllm.generate(model, [rxllm.system("Be brief."), hello, altered, rxllm.user("Bye")]).run()
    assert (server.refuses, sent_thoughts(server.accepted[-1])) == ([(1, 0)], [])


EXPLICIT = {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}}


@pytest.mark.parametrize("options", [{"refused_thoughts": "error"}, EXPLICIT])
def test_the_caller_can_ask_for_the_error(options: dict[str, Any]):
    with BindingServer(*TURNS) as server:
        model = engine(server)
        thread = with_system(talk(model, "Hi"), "Be long.") + "Bye"
        with pytest.raises(AdapterError, match="bound to a different conversation"):
            rxllm.generate(model, thread, options=options).run()
    assert len(server.requests) == 2


def test_a_caller_who_lets_the_server_drop_them_is_not_refused():
    options = {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}}
    with BindingServer(*TURNS) as server:
        thread = with_system(talk(engine(server), "Hi"), "Be long.") + "Bye"
        rxllm.generate(engine(server), thread, options=options).run()
    assert (server.refuses, server.requests[-1].headers["anthropic-beta"]) == ([], BETA)


def test_a_second_refusal_is_the_answer():
    refusal = failure("messages.1.content.0: Invalid `signature` in `thinking` block")
    with BindingServer(*TURNS) as server:
        thread = talk(engine(server), "Hi", "How are you?") + "Bye"
    with Loopback(refusal) as server:
        with pytest.raises(AdapterError, match="Invalid `signature`"):
            rxllm.generate(engine(server, retry=True), thread).run()
        assert len(server.requests) == 2


def test_a_refusal_without_a_place_leaves_all_thoughts_out():
    with BindingServer(*TURNS) as server:
        thread = talk(engine(server), "Hi", "How are you?") + "Bye"
    refusal = failure("Invalid `signature` in `thinking` block")
    with Loopback([refusal, Reply(frames([say("Bye.")]))]) as server:
        rxllm.generate(engine(server), thread).run()
        assert [sent_thoughts(request.json) for request in server.requests] == [["one", "two", "hidden"], []]


def test_a_refusal_that_is_streamed_is_answered_too():
    with BindingServer(*TURNS) as server:
        thread = talk(engine(server), "Hi") + "Bye"
    message = (
        "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
    )
    refusal = frame("error", error={"type": "invalid_request_error", "message": message})
    with Loopback([Reply(refusal), Reply(frames([say("Bye.")]))]) as server:
        assert rxllm.generate(engine(server), thread).run().output_text == "Bye."
        assert sent_thoughts(server.requests[-1].json) == []


def test_another_error_is_the_answer():
    with BindingServer(*TURNS) as server:
        thread = talk(engine(server), "Hi") + "Bye"
    with Loopback(failure("messages.1.content.0: thinking is not supported")) as server:
        with pytest.raises(AdapterError, match="not supported"):
            rxllm.generate(engine(server), thread).run()
        assert len(server.requests) == 1


def test_tokens_are_counted_without_refused_thoughts():
    def count(request: Received) -> Reply:
        return failure(message) if sent_thoughts(request.json) else Reply.of_json({"input_tokens": 7})

    message = "messages.1.content.0: Invalid `signature` in `thinking` block"
    with BindingServer(*TURNS) as server:
        thread = talk(engine(server), "Hi") + "Bye"
    with Loopback(count) as server:
        assert rxllm.count_tokens(engine(server), thread).run().tokens == 7


def test_claude_on_vertex_is_asked_again_too():
    with BindingServer(*TURNS) as server:
        adapter = Vertex(project="p", api_key="token", base_url=server.url)
        model = Engine(adapter, model=MODEL, errors="raise")
        thread = with_system(talk(model, "Hi"), "Be long.") + "Bye"
        rxllm.chat(model, thread).run()
    assert (server.refuses, sent_thoughts(server.accepted[-1])) == ([(1, 0)], [])


def test_what_is_sent_is_of_the_sdks_types():
    with BindingServer(*TURNS) as server:
        model = engine(server)
        thread = with_system(talk(model, "Hi", "How are you?"), "Be long.") + "Bye"
        rxllm.chat(model, thread).run()
    for body in server.bodies:
        check(body)


def test_another_value_of_the_option_is_refused_before_anything_is_sent():
    with Loopback() as server:
        with pytest.raises(ValidationError, match="refused_thoughts must be 'leave_out', 'drop_block' or 'error'"):
            rxllm.generate(engine(server), "Hi", options={"refused_thoughts": "drop"}).run()
        assert server.requests == []
