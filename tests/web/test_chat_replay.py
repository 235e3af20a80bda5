"""A browser that returns during a turn that an answer has resumed: it first gets the steps before the answer."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rxllm import (
    Engine,
    Message,
    StreamError,
    TextDelta,
    Thread,
    ToolCall,
    durable,
    tool,
    tool_result,
    web,
)
from rxllm import events as ev
from rxllm.session import MemorySessions
from rxllm.testing.event_checks import expect_lawful
from rxllm.values import FilePart, Image, ImagePart, SourcePart, TextPart, ThinkingPart, ToolCallPart, user
from rxllm.web._chat_replay import events_before
from tests.web.chats import Page, ag_body, approval, body, browser, opens_at_return, says

ALLOWED = {"interruptId": "c1", "status": "resolved", "payload": {"approved": True}}
BODIES = {
    "ui": (body("c", says("Pay 5.")), body("c", approval())),
    "ag-ui": (ag_body("c", "Pay 5."), ag_body("c", resume=[ALLOWED])),
}
SHOWN = {
    "ui": ["Let me see. ", "tool-input-available", "tool-output-available", "Paid."],
    "ag-ui": ["Let me see. ", "TOOL_CALL_START", "TOOL_CALL_RESULT", "Paid."],
}


class Gate:
    """The place of a turn that waits until a browser has returned."""

    def __init__(self, place: str) -> None:
        self.place, self.reached, self.returned = place, asyncio.Event(), asyncio.Event()

    async def pass_through(self, place: str) -> None:
        if place == self.place:
            self.reached.set()
            await self.returned.wait()

    def engine(self) -> Engine:
        @tool(approval=True)
        async def pay(amount: int) -> str:
            """Pay an amount."""
            await self.pass_through("tool")
            return f"paid {amount}"

        async def model(request: Any, call: Any) -> Any:
            if request.messages[-1].role == "tool":
                await self.pass_through("model")
                yield TextDelta("Paid.")
            else:
                yield TextDelta("Let me see. ")
                yield ev.ToolCallCompleted("c1", "pay", {"amount": 5}, '{"amount": 5}')

        return Engine(model, tools=[pay])


def shown(content: bytes, protocol: str) -> list[str]:
    frames = [frame.get("delta") or frame["type"] for frame in web.from_sse(content)]
    return [text for text in frames if text in SHOWN[protocol]]


@pytest.mark.parametrize("protocol", ["ui", "ag-ui"])
@pytest.mark.parametrize("place", ["tool", "model"])
@pytest.mark.parametrize("kind", ["memory", "durable"])
def test_the_replay_begins_after_the_last_user_message(tmp_path: Path, kind: str, place: str, protocol: Any) -> None:
    async def main() -> None:
        gate = Gate(place)
        async with AsyncExitStack() as stack:
            store, runs = MemorySessions(), None
            if kind == "durable":
                runs = await stack.enter_async_context(durable.open_runs(tmp_path / "runs.db", {}))
                store = runs.sessions
            app = web.chat(gate.engine(), store, runs=runs, protocol=protocol, background=True)
            client = await stack.enter_async_context(browser(opens_at_return(app, gate.returned)))
            page, (message, answer) = Page(client), BODIES[protocol]
            await client.post(page.path, json=message)
            posting = asyncio.create_task(client.post(page.path, json=answer))
            await gate.reached.wait()
            assert shown((await page.back()).content, protocol) == SHOWN[protocol]
            assert shown((await posting).content, protocol) == SHOWN[protocol][2:]

    asyncio.run(main())


PARTS = (
    *(ThinkingPart("Hm.", "signed"), TextPart("Look: "), SourcePart({"url": "https://example.org"})),
    *(ToolCallPart("c1"), FilePart({"mime_type": "image/png", "url": "https://example.org/a.png"}), TextPart("More.")),
)
CALLS = [
    ToolCall("c1", "pay", {"amount": 5}, '{"amount": 5}'),
    ToolCall("c2", "pay", {}, '{"amount":', {"error": "invalid_json"}),
]


def says_and_calls(content: Any, *calls: ToolCall) -> Message:
    return Message("assistant", content, tool_calls=calls)


THREADS = [
    [says_and_calls("Let me see. ", CALLS[0])],
    [says_and_calls(PARTS, CALLS[0]), tool_result("c1", "paid"), says_and_calls("", CALLS[1])],
    [says_and_calls("", *CALLS), tool_result("c2", {"error": "no"}), tool_result("c1", "x"), says_and_calls("Paid.")],
]


@pytest.mark.parametrize("messages", THREADS)
def test_the_events_fold_to_the_messages(messages: list[Any]) -> None:
    events = events_before(Thread().add_user("Hi").add_assistant("Hello").add_user("Pay.") + messages)
    with pytest.raises(AssertionError, match="chat_completed: missing at the end"):  # the only fault
        expect_lawful([*events, ev.ErrorEvent(StreamError("cancelled"))])
    answers = [event.message for event in events if isinstance(event, ev.MessageCompleted)]
    assert answers == [message for message in messages if message.role == "assistant"]
    results = [(event.id, event.content) for event in events if isinstance(event, ev.ToolResultEncoded)]
    assert results == [(message.tool_call_id, message.text) for message in messages if message.role == "tool"]


def test_a_new_message_has_no_events_before_it() -> None:
    assert events_before(Thread()) == events_before(Thread().add_user("Hi")) == []


def test_a_picture_of_a_tool_is_replayed_with_a_note_as_its_text() -> None:
    picture = ImagePart(Image.from_binary(b"12345", "image/png"))
    call = ToolCall("c1", "look", {})
    result = Message("tool", (picture,), tool_call_id="c1")
    thread = Thread((user("Look!"), Message("assistant", tool_calls=(call,)), result))
    (encoded,) = [event for event in events_before(thread) if isinstance(event, ev.ToolResultEncoded)]
    assert (encoded.content, encoded.parts) == ("[image/png, 5 bytes]", (picture,))
