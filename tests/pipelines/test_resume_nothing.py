"""A chat that has nothing to resume is refused before a model is asked."""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm import Engine, Fake, OpenAIChat, SessionError, ToolCall, ValidationError, resume, session, stream_resume
from rxllm.testing.loopback import Loopback, Reply, chat


@rxllm.tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


CALL = ToolCall("c0", "pay", {"amount": 5})


@pytest.mark.sockets
@pytest.mark.parametrize("function", [resume, stream_resume])
def test_a_chat_that_is_over_is_refused_at_the_call(function: Any) -> None:
    with Loopback(Reply(chat("Hi"))) as server:
        engine = Engine(OpenAIChat(base_url=server.url), model="m")
        done = rxllm.chat(engine, "Hello").run()
        for thread in (done, done.thread, rxllm.serializer.from_json(rxllm.serializer.to_json(done))):
            with pytest.raises(ValidationError, match=r"nothing to resume.*rxllm\.chat"):
                function(engine, thread)
        assert len(server.requests) == 1


def test_a_stale_page_that_approves_again_pays_nothing() -> None:
    fake = Fake(CALL, "Done.")
    halted = rxllm.chat(fake, "Pay 5.", tools=[pay]).run()
    done = resume(fake, halted, approvals={"c0": True}, tools=[pay]).run()
    with pytest.raises(ValidationError, match="c0"):
        resume(fake, done, approvals={"c0": True}, tools=[pay])
    assert len(fake.requests) == 2


def test_a_session_that_is_completed_is_refused() -> None:
    fake = Fake("Hi", "again")
    turn = session.start(fake, "Hello").run()
    with pytest.raises(SessionError, match=r"session\.reply") as caught:
        session.resume(fake, turn).run()
    assert (caught.value.reason, len(fake.requests)) == ("no_pending_tool_call", 1)
    events: list[Any] = []
    session.stream_resume(fake, turn).pipe(rxllm.operators.tap(events.append), rxllm.operators.errors_as_events()).run()
    assert (events, len(fake.requests)) == ([], 1)


def test_a_chat_that_is_to_be_answered_by_its_model_is_resumed() -> None:
    fake = Fake(ToolCall("c0", "pay", {"amount": 5}), "Done.")
    tools: Any = {"tools": [pay], "approve": lambda call: True}
    halted = rxllm.chat(fake, "Pay 5.", max_turns=1, **tools).run()
    assert halted.halted_reason == "max_turns"
    assert resume(fake, halted, **tools).run().output_text == "Done."
    assert resume(Fake("Hi"), [rxllm.user("Hello")]).run().output_text == "Hi"
