"""An approval is for the call that the user has seen, not for another call with its id."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rxllm
from rxllm import Engine, Fake, Session, Thread, ToolCall, ValidationError, serializer, tool, web
from rxllm.session import MemorySessions
from tests.web.chats import Page, ag_body, made, paid, pay, says, text_of, visit

SIXTEEN, SEVENTEEN = (ToolCall("c1", "pay", {"amount": amount}) for amount in (16, 17))


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


def frames(response: Any) -> list[Any]:
    assert response.status_code == 200, response.text
    return list(web.from_sse(response.content))


def asked(response: Any) -> str:
    """Return the id of the approval request in the answer, in either protocol."""
    last = frames(response)[-1]
    if "outcome" in last:
        (interrupt,) = last["outcome"]["interrupts"]
        return interrupt["id"]
    (request,) = (frame for frame in frames(response) if frame["type"] == "tool-approval-request")
    assert request["toolCallId"] == "c1"
    return request["approvalId"]


def approves(id: str, **fields: Any) -> dict[str, Any]:
    answer = {"toolCallId": "c1", "state": "approval-responded", "approval": {"id": id, "approved": True}}
    return {"role": "assistant", "parts": [{"type": "dynamic-tool", "toolName": "pay", **answer, **fields}]}


async def asked_twice(page: Page) -> tuple[str, str]:
    """Ask for a payment, and once more from another tab, where the model uses the same call id."""
    first = asked(await page.say("Pay."))
    again = await page.post(says("Pay."), trigger="regenerate-message", messageId="m")
    return first, asked(again)


REFUSED: dict[str, Any] = {
    "what was shown": lambda first: approves(first),
    "what was shown, with its arguments": lambda first: approves(first, input={"amount": 16}),
    "the call's id": lambda first: approves("c1"),
    "the call's id, with other arguments": lambda first: approves("c1", input={"amount": 16}),
    "no id": lambda first: approves(""),
    "another digest": lambda first: approves("c1:" + "0" * 32),
    "another id": lambda first: approves("x"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_approval_of_a_dropped_call_approves_no_later_call_with_its_id(name: str) -> None:
    app, store = made([SIXTEEN], [SEVENTEEN], "Done.")

    async def act(page: Page) -> None:
        first, second = await asked_twice(page)
        assert first != second
        refused = await page.post(REFUSED[name](first))
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "outdated_approval")
        (waiting,) = (await store.load("c")).session.pending_tool_calls
        assert waiting.arguments == {"amount": 17}
        assert paid == []
        assert text_of(await page.post(approves(second))) == "Done."

    visit(app, act)
    assert paid == [17]


def test_after_a_dropped_call_its_id_is_enough_with_the_arguments() -> None:
    app, _ = made([SIXTEEN], [SEVENTEEN], "Done.")

    async def act(page: Page) -> None:
        await asked_twice(page)
        assert text_of(await page.post(approves("c1", input={"amount": 17}))) == "Done."

    visit(app, act)
    assert paid == [17]


@pytest.mark.parametrize("way", ["what was shown", "the call's id", "no id"])
def test_an_approval_without_arguments_approves_the_only_call(way: str) -> None:
    app, _ = made([SIXTEEN], "Done.")

    async def act(page: Page) -> None:
        id = asked(await page.say("Pay."))
        assert (
            text_of(await page.post(approves({"what was shown": id, "the call's id": "c1", "no id": ""}[way])))
            == "Done."
        )

    visit(app, act)
    assert paid == [16]


def test_an_interrupt_of_ag_ui_stands_for_what_was_shown() -> None:
    app, store = made([SIXTEEN], "Done.", protocol="ag-ui")

    def resume(id: str, **payload: Any) -> dict[str, Any]:
        answer = {"interruptId": id, "status": "resolved", "payload": {"approved": True, **payload}}
        return ag_body("c", resume=[answer])

    async def act(page: Page) -> None:
        id = asked(await page.client.post("/api/chat", json=ag_body("c", "Pay.")))
        assert id.startswith("c1:")
        stale = await page.client.post("/api/chat", json=resume("c1:" + "0" * 32))
        assert (stale.status_code, paid) == (409, [])
        unknown = await page.client.post("/api/chat", json=resume("c9:" + "0" * 32))
        assert (unknown.status_code, paid) == (400, [])
        assert text_of(await page.client.post("/api/chat", json=resume(id))) == "Done."
        assert (await page.client.post("/api/chat", json=resume(id))).status_code == 400  # there is nothing to answer

    visit(app, act)
    assert paid == [16]
    assert asyncio.run(store.load("c")).session.pending_tool_calls == ()


def test_the_dropped_ids_stay_with_the_thread() -> None:
    thread = Thread().add_user("Pay.") + rxllm.Message("assistant", tool_calls=(SIXTEEN,))
    body: Any = {"messages": [says("Pay.")], "trigger": "regenerate-message", "messageId": "m"}
    again = serializer.from_json(serializer.to_json(web.from_ui(body, thread).thread), Thread)
    engine = Engine(Fake([SEVENTEEN]), tools=[pay])
    result = rxllm.chat(engine, again).run()
    inner = rxllm.ChatResult(result.thread, pending_tool_calls=(ToolCall("c1/c2", "pay", {}),))
    for stored, id in (
        (result, "c1"),
        (Session(thread=result.thread).with_thread(result.thread), "c1"),
        (inner, "c1/c2"),
    ):
        part = approves(id)["parts"][0] | {"toolCallId": id}
        with pytest.raises(ValidationError) as caught:
            web.from_ui({"messages": [{"role": "assistant", "parts": [part]}]}, stored)
        assert caught.value.metadata == {"outdated_approval": id}
        shown = part | {"approval": {"id": web.approval_id(stored.pending_tool_calls[0]), "approved": True}}
        assert web.from_ui({"messages": [{"role": "assistant", "parts": [shown]}]}, stored).approvals == {id: True}


@pytest.mark.parametrize(
    "arguments",
    [{"a": 1.0, "b": [1e300, -0.0, 2**70]}, {"é": "\ud83d", "z": {"y": None, "x": True}}, {"b": 1, "a": 2}],
)
def test_an_approval_id_survives_the_store(arguments: dict[str, Any]) -> None:
    call = ToolCall("c1", "pay", arguments)
    stored = serializer.from_json(serializer.to_json(Session(pending_tool_calls=(call,))), Session)
    again = ToolCall("c1", "pay", dict(reversed(arguments.items())))
    ids = {web.approval_id(each) for each in (call, again, *stored.pending_tool_calls)}
    others = {web.approval_id(ToolCall("c1", "buy", arguments)), web.approval_id(ToolCall("c1", "pay", {}))}
    assert (len(ids), len(others), ids & others) == (1, 2, set())


@tool
def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_tool_that_needs_approval_does_not_run_in_the_client(depth: int) -> None:
    engine = Engine(Fake("Hi"), tools=[pay, look])
    for _ in range(depth):
        agent = engine.as_tool(name="agent", description="An agent.")
        engine = Engine(Fake("Hi"), tools=[agent])
    with pytest.raises(ValidationError, match="pay"):
        web.chat(engine, MemorySessions(), protocol="ag-ui", client_tools=["where", "pay"])
    web.chat(engine, MemorySessions(), protocol="ag-ui", client_tools=["where", "look"])
