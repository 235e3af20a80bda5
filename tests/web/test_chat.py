"""`web.chat`: messages, approvals, questions, client tools, one turn at a time, and the statuses of other requests."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

import rxllm
from rxllm import AdapterError, Engine, Fake, RunError, Session, ToolCall, ValidationError, durable, web
from rxllm.session import MemorySessions, SavedSession
from tests.waiting import turns, until
from tests.web.chats import (
    ASKS,
    PAYS,
    Page,
    Slow,
    ag_body,
    approval,
    ask,
    body,
    browser,
    made,
    paid,
    pay,
    says,
    simulated,
    text_of,
    visit,
)
from tests.web.chats import thread as stored


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


# What a page sends


def test_a_message_is_answered_and_the_turn_is_saved() -> None:
    app, store = made(system="Be brief.")

    async def act(page: Page) -> None:
        assert text_of(await page.say("Hi")) == "You wrote Hi"
        assert await stored(store) == ["Be brief.", "Hi", "You wrote Hi"]
        assert text_of(await page.say("More")) == "You wrote More"
        assert await stored(store) == ["Be brief.", "Hi", "You wrote Hi", "More", "You wrote More"]
        assert (await store.load("c")).session.status == "completed"

    visit(app, act)


def test_conversations_do_not_meet() -> None:
    app, store = made()

    async def act(page: Page) -> None:
        other = Page(page.client, "d")
        answers = await asyncio.gather(page.say("one"), other.say("two"))
        assert [text_of(answer) for answer in answers] == ["You wrote one", "You wrote two"]
        assert (await stored(store), await stored(store, "d")) == (["one", "You wrote one"], ["two", "You wrote two"])

    visit(app, act)


def test_tools_receive_the_context_of_a_session_that_was_saved_before() -> None:
    users: list[Any] = []

    @rxllm.tool
    def whoami(context: rxllm.ToolContext) -> str:
        users.append(context.context["user"])
        return "you"

    model = Fake(ToolCall("c1", "whoami", {}), "You are you.")
    store = rxllm.session.MemorySessions()
    app = web.chat(rxllm.Engine(model, tools=[whoami]), store)

    async def act(page: Page) -> None:
        await store.save(rxllm.Session(id="c", context={"user": "ada"}))
        assert text_of(await page.say("Who am I?")) == "You are you."
        assert users == ["ada"]

    visit(app, act)


def test_an_approval_resumes_the_turn() -> None:
    app, store = made(PAYS, "Paid.")

    async def act(page: Page) -> None:
        await page.say("Pay 5.")
        assert (await store.load("c")).session.status == "awaiting_tools"
        wrong = await page.post(approval("c2"))
        assert (wrong.status_code, paid) == (400, [])
        assert text_of(await page.post(approval())) == "Paid."
        assert paid == [5]
        again = await page.post(approval())
        assert (again.status_code, paid) == (400, [5])

    visit(app, act)


def test_a_repeated_call_gets_an_id_of_its_own() -> None:
    """An old approval does not approve the new call."""
    app, store = made(PAYS, "Paid.", ToolCall("c1", "pay", {"amount": 6}), "Paid again.")

    async def act(page: Page) -> None:
        await page.say("Pay 5.")
        await page.post(approval())
        halted = await page.say("Pay 6.")
        (asked,) = [frame for frame in web.from_sse(halted.content) if frame["type"] == "tool-approval-request"]
        assert asked["toolCallId"] != "c1"
        assert ((await page.post(approval())).status_code, paid) == (400, [5])
        assert text_of(await page.post(approval(asked["toolCallId"]))) == "Paid again."
        assert paid == [5, 6]
        assert (await store.load("c")).session.status == "completed"

    visit(app, act)


def test_a_message_instead_of_an_approval_denies_the_call() -> None:
    app, _ = made(PAYS, "As you like.")

    async def act(page: Page) -> None:
        await page.say("Pay 5.")
        assert text_of(await page.say("No, wait.")) == "As you like."
        assert paid == []

    visit(app, act)


def test_half_of_the_approvals_is_refused_and_the_calls_still_wait() -> None:
    app, store = made([PAYS, ToolCall("c2", "pay", {"amount": 6})], "Paid.")

    async def act(page: Page) -> None:
        await page.say("Pay 5 and 6.")
        assert (await page.post(approval())).status_code == 400
        assert len((await store.load("c")).session.pending_tool_calls) == 2
        both = {"role": "assistant", "parts": [*approval()["parts"], *approval("c2", False)["parts"]]}
        assert text_of(await page.post(both)) == "Paid."
        assert paid == [5]

    visit(app, act)


def test_a_message_answers_the_question() -> None:
    app, store = made(ASKS, "To Rome, then.")

    async def act(page: Page) -> None:
        await page.say("Book a train.")
        assert (await store.load("c")).session.status == "awaiting_user"
        assert text_of(await page.say("Rome")) == "To Rome, then."
        assert (await store.load("c")).session.status == "completed"

    visit(app, act)


def test_a_message_answers_a_question_inside_an_agent() -> None:
    inner = Engine(Fake(ASKS, "He goes to Rome."), tools=[ask])
    agent = inner.as_tool(name="agent", description="Helps.")
    engine = Engine(Fake(ToolCall("a", "agent", {"prompt": "Ask."}), "Booked."), tools=[agent])
    store = MemorySessions()

    async def act(page: Page) -> None:
        await page.say("Book a train.")
        assert (await store.load("c")).session.status == "awaiting_user"
        assert text_of(await page.say("Rome")).endswith("Booked.")
        assert (await store.load("c")).session.status == "completed"

    visit(web.chat(engine, store), act)


def lost_calls(response: httpx.Response) -> set[str]:
    """Return the ids of the calls that have an output, but have not been announced before. ``useChat`` raises."""
    known, lost = set[str](), set[str]()
    for frame in web.from_sse(response.content):
        if frame["type"] in ("tool-input-start", "tool-input-available"):
            known.add(frame["toolCallId"])
        elif frame["type"].startswith("tool-output") and frame["toolCallId"] not in known:
            lost.add(frame["toolCallId"])
    return lost


def test_a_message_that_answers_a_call_begins_with_the_call() -> None:
    inner = Engine(Fake(ASKS, "He goes to Rome."), tools=[ask])
    agent = inner.as_tool(name="agent", description="Helps.")
    model = Fake(ToolCall("a", "agent", {"prompt": "Ask."}), "Booked.", PAYS, "As you like.")
    engine = Engine(model, tools=[agent, pay])

    async def act(page: Page) -> None:
        await page.say("Book a train.")
        booked = await page.say("Rome")
        assert (lost_calls(booked), text_of(booked).endswith("Booked.")) == (set(), True)
        await page.say("Pay 5.")
        denied = await page.say("No, wait.")
        assert (lost_calls(denied), text_of(denied)) == (set(), "As you like.")
        assert "tool-output-available" in denied.text

    visit(web.chat(engine, MemorySessions()), act)


def test_a_regenerated_answer_does_not_begin_with_the_call_that_it_replaces() -> None:
    app, _ = made(PAYS, "As you like.")

    async def act(page: Page) -> None:
        await page.say("Pay 5.")
        again = await page.post(says("Pay 5."), trigger="regenerate-message", messageId="m")
        assert (text_of(again), "tool-input" in again.text) == ("As you like.", False)

    visit(app, act)


def test_a_failed_turn_can_be_tried_again() -> None:
    app, store = made(["Hel", AdapterError("provider_unavailable", "secret")], "Hello.", "And hello again.")

    async def act(page: Page) -> None:
        failed = await page.say("Hi")
        assert failed.status_code == 200
        assert "secret" not in failed.text
        assert (await store.load("c")).session.status == "error"
        assert text_of(await page.say("Are you there?")) == "Hello."
        assert await stored(store) == ["Hi", "Hel", "Are you there?", "Hello."]
        regenerated = await page.post(says("Hi"), trigger="regenerate-message", messageId="m")
        assert text_of(regenerated) == "And hello again."
        assert await stored(store) == ["Hi", "Hel", "Are you there?", "And hello again."]

    visit(app, act)


@pytest.mark.parametrize("kind", ["memory", "durable"])
def test_a_message_that_the_provider_refuses_is_left_out_of_later_turns(tmp_path: Path, kind: str) -> None:
    asked: list[list[str]] = []

    def answer(request: Any) -> Any:
        asked.append([message.role for message in request.messages])
        has_picture = any(not isinstance(message.content, str) for message in request.messages)
        return [AdapterError("invalid_request", "a secret picture") if has_picture else "Hello."]

    picture = {
        "role": "user",
        "parts": [{"type": "file", "url": "https://example.org/a.png", "mediaType": "image/png"}],
    }

    async def act(page: Page) -> None:
        await page.say("Hi")
        refused = await page.post(picture)
        (told,) = [frame for frame in web.from_sse(refused.content) if frame["type"] == "data-message_refused"]
        assert (told["data"], "secret" in refused.text) == ({"reason": "invalid_request"}, False)
        again = await page.post(says("Hi"), picture, trigger="regenerate-message", messageId="m")
        assert "data-message_refused" in again.text
        assert (
            text_of(await page.post(says("Hi"), {"role": "assistant", "parts": []}, picture, says("Well?"))) == "Hello."
        )
        assert text_of(await page.say("More")) == "Hello."

    async def main() -> None:
        async with AsyncExitStack() as stack:
            runs, store = None, MemorySessions()
            if kind == "durable":
                runs = await stack.enter_async_context(durable.open_runs(tmp_path / "runs.db", {}))
                store = runs.sessions
            app = web.chat(Engine(Fake(answer), retry=False), store, runs=runs)
            await act(Page(await stack.enter_async_context(browser(app))))

    asyncio.run(main())
    turn = ["user", "assistant"]
    assert asked == [["user"], [*turn, "user"], [*turn, "user"], [*turn, "user"], [*turn * 2, "user"]]


@pytest.mark.parametrize("error", [AdapterError("provider_unavailable"), ["Hel", AdapterError("invalid_request")]])
def test_a_message_that_was_not_refused_stays(error: Any) -> None:
    app, store = made(error, "Hello.")

    async def act(page: Page) -> None:
        assert "message_refused" not in (await page.say("Hi")).text
        assert text_of(await page.say("Well?")) == "Hello."
        assert (await stored(store))[0] == "Hi"

    visit(app, act)


def test_a_first_message_that_was_refused_can_be_tried_again() -> None:
    app, store = made("Hello.", system="Be brief.")

    async def act(page: Page) -> None:
        assert text_of(await page.post(says("Hi"), trigger="regenerate-message", messageId="m")) == "Hello."
        assert await stored(store) == ["Be brief.", "Hi", "Hello."]
        nothing = {"role": "assistant", "parts": []}
        assert (await Page(page.client, "d").post(nothing, trigger="regenerate-message")).status_code == 400

    visit(app, act)


def test_a_client_tools_result_continues_the_turn() -> None:
    locate = rxllm.tool(name="locate", description="Locate.", schema={"type": "object"}, manual=True)
    engine, store = Engine(Fake(ToolCall("c1", "locate", {}), "In Rome."), tools=[locate]), MemorySessions()
    part = {"type": "tool-locate", "toolCallId": "c1", "state": "output-available", "input": {}, "output": "Rome"}

    async def act(page: Page) -> None:
        await page.say("Where am I?")
        assert text_of(await page.post({"role": "assistant", "parts": [part]})) == "In Rome."

    visit(web.chat(engine, store, client_tools=["locate"]), act)

    async def refused(page: Page) -> None:
        await page.say("Where am I?")
        assert (await page.post({"role": "assistant", "parts": [part]})).status_code == 400

    engine = Engine(Fake(ToolCall("c1", "locate", {}), "In Rome."), tools=[locate])
    visit(web.chat(engine, MemorySessions()), refused)


def test_ag_ui() -> None:
    app, store = made(PAYS, "Paid.", protocol="ag-ui")

    async def act(page: Page) -> None:
        halted = await page.client.post("/api/chat", json=ag_body("c", "Pay 5."))
        frames = list(web.from_sse(halted.content))
        assert frames[0]["type"] == "RUN_STARTED"
        assert (frames[0]["threadId"], frames[0]["runId"]) == ("c", "r1")
        assert frames[-1]["outcome"]["type"] == "interrupt"
        answer = {"interruptId": "c1", "status": "resolved", "payload": {"approved": True}}
        assert text_of(await page.client.post("/api/chat", json=ag_body("c", resume=[answer]))) == "Paid."
        assert (await page.back()).status_code == 204
        assert (await store.load("c")).session.status == "completed"

    visit(app, act)


@pytest.mark.parametrize(("approved", "told"), [(True, '{"approve":true}'), (False, "denied")])
@pytest.mark.parametrize("protocol", ["ui", "ag-ui"])
def test_a_call_that_the_provider_runs_is_approved_like_any_other(protocol: Any, approved: bool, told: str) -> None:
    """A tool of the client's that has the same name is another tool."""
    seen: list[str] = []

    def model(request: Any) -> Any:
        seen.append(request.messages[-1].text)
        return ToolCall("c1", "ask", {"amount": 5}, metadata={"hosted": True}) if len(seen) == 1 else "Well."

    app, store = made(model, protocol=protocol, client_tools=["ask"])
    answer = {"interruptId": "c1", "status": "resolved", "payload": {"approved": approved}}

    async def act(page: Page) -> None:
        if protocol == "ui":
            await page.say("Pay 5.")
            answered = await page.post(approval("c1", approved))
        else:
            await page.client.post("/api/chat", json=ag_body("c", "Pay 5."))
            answered = await page.client.post("/api/chat", json=ag_body("c", resume=[answer]))
        assert (text_of(answered), paid) == ("Well.", [])
        assert told in seen[1]
        assert (await store.load("c")).session.status == "completed"

    visit(app, act)


def test_ag_ui_clients_bring_their_tools() -> None:
    seen: list[Any] = []

    def answers(request: Any) -> Any:
        seen.append([tool.name for tool in request.tools])
        return ToolCall("c1", "locate", {}) if len(seen) == 1 else "In Rome."

    app, _ = made(answers, protocol="ag-ui", client_tools=["locate", "ask"])
    tools = [{"name": name, "description": "d"} for name in ("locate", "steal", "locate", "ask")]

    async def act(page: Page) -> None:
        halted = await page.client.post("/api/chat", json=ag_body("c", "Where am I?", tools=tools))
        assert list(web.from_sse(halted.content))[-1]["outcome"]["pendingToolCallIds"] == ["c1"]
        result = {"id": "m2", "role": "tool", "toolCallId": "c1", "content": "Rome"}
        again = ag_body("c", tools=tools)
        again["messages"] = [result]
        assert text_of(await page.client.post("/api/chat", json=again)) == "In Rome."

    visit(app, act)
    assert seen == [["pay", "ask", "locate"]] * 2


# One turn at a time


def test_a_second_tab_is_refused() -> None:
    async def main() -> None:
        slow, store = Slow(), MemorySessions()
        async with browser(web.chat(slow.model, store)) as client:
            page = Page(client)
            first = asyncio.create_task(page.say("A story!"))
            await until(lambda: slow.asked == 1)
            second = await page.say("Another!")
            assert (second.status_code, second.json()["error"]["code"]) == (409, "busy")
            assert second.headers["retry-after"] == "1"
            slow.go.set()
            assert text_of(await first) == "Once upon."
        assert (slow.asked, await stored(store)) == (1, ["A story!", "Once upon."])

    asyncio.run(main())


def test_a_second_tab_waits() -> None:
    async def main() -> None:
        slow, store = Slow(), MemorySessions()
        async with browser(web.chat(slow.model, store, busy="wait")) as client:
            page = Page(client)
            first = asyncio.create_task(page.say("A story!"))
            await until(lambda: slow.asked == 1)
            others = [asyncio.create_task(page.say(text)) for text in ("Another!", "And another!")]
            await turns()
            assert slow.asked == 1
            slow.go.set()
            assert [text_of(await task) for task in (first, *others)] == ["Once upon."] * 3
        assert slow.asked == 3
        assert sorted(await stored(store)) == sorted(["A story!", "Another!", "And another!", *["Once upon."] * 3])

    asyncio.run(main())


@pytest.mark.parametrize(("busy", "seconds"), [("refuse", 1), ("wait", 30)])
def test_a_wait_is_bounded(busy: Any, seconds: float) -> None:
    slow = Slow()

    async def act(page: Page) -> float:
        clock = asyncio.get_running_loop().time
        first = asyncio.create_task(page.say("A story!"))
        await turns()
        assert slow.asked == 1
        began = clock()
        assert (await page.say("Another!")).status_code == 409
        waited = clock() - began
        slow.go.set()
        await first
        return waited

    waited = simulated(web.chat(slow.model, MemorySessions(), busy=busy), act)
    assert seconds <= waited < seconds + 0.1


@pytest.mark.parametrize("busy", ["refuse", "wait"])
def test_two_processes_share_a_store(busy: Any) -> None:
    """Both load the same version. One of them begins the turn; the other refuses, or begins the next one."""

    class Store(MemorySessions):
        loads = 0

        async def load(self, id: str) -> SavedSession:
            self.loads += 1
            return await super().load(id)

        async def save(self, session: Session, version: int = 0) -> SavedSession:
            await until(lambda: self.loads >= 2)  # both have loaded the session
            return await super().save(session, version)

    async def main() -> None:
        store = Store()
        slows = [Slow(), Slow()]
        for slow in slows:
            slow.go.set()
        apps = [web.chat(slow.model, store, busy=busy) for slow in slows]
        async with browser(apps[0]) as one, browser(apps[1]) as two:
            answers = await asyncio.gather(Page(one).say("One"), Page(two).say("Two"))
        statuses = sorted(answer.status_code for answer in answers)
        texts = await stored(store)
        if busy == "refuse":
            assert (statuses, sum(slow.asked for slow in slows), len(texts)) == ([200, 409], 1, 2)
        else:  # the second turn may begin before the first one has ended, but it keeps the first message
            assert statuses == [200, 200]
            assert {"One", "Two"} <= {*texts}

    asyncio.run(main())


def test_a_turn_that_another_process_overtakes_overwrites_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        slow, store = Slow(), MemorySessions()
        async with browser(web.chat(slow.model, store)) as client:
            first = asyncio.create_task(Page(client).say("A story!"))
            await until(lambda: slow.asked == 1)
            saved = await store.load("c")
            await store.save(saved.session.append_user("From elsewhere"), saved.version)
            slow.go.set()
            await first
        assert await stored(store) == ["A story!", "From elsewhere"]

    asyncio.run(main())
    assert [record.levelname for record in caplog.records if record.name == "rxllm"] == ["ERROR"]


def test_stopping() -> None:
    async def main() -> None:
        slow, store = Slow(), MemorySessions()
        async with browser(web.chat(slow.model, store)) as client:
            page = Page(client)
            first = asyncio.create_task(page.say("A story!"))
            await until(lambda: slow.asked == 1)
            assert (await page.stop()).status_code == 204
            assert await stored(store) == ["A story!", "Once "]
            assert (await page.stop()).status_code == 204
            assert "Once " in (await first).text
            slow.go.set()
            assert text_of(await page.say("Again!")) == "Once upon."

    asyncio.run(main())


def test_many_turns_at_once() -> None:
    async def main() -> None:
        slow = Slow()
        async with browser(web.chat(slow.model, MemorySessions(), max_running=2)) as client:
            tasks = [asyncio.create_task(Page(client, str(i)).say("Hi")) for i in range(2)]
            await until(lambda: slow.asked == 2)
            full = await Page(client, "3").say("Hi")
            assert (full.status_code, full.headers["retry-after"]) == (503, "1")
            slow.go.set()
            await asyncio.gather(*tasks)
            assert (await Page(client, "3").say("Hi")).status_code == 200

    asyncio.run(main())


# Other requests


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("POST", "/api/chat/", 200), ("GET", "/api/chat", 405), ("DELETE", "/api/chat", 405)),
        *(("PUT", "/api/chat", 405), ("PATCH", "/api/chat/c", 405), ("OPTIONS", "/api/chat", 405)),
        *(("POST", "/api/chat/c", 405), ("POST", "/api/chat/c/stream", 405), ("HEAD", "/api/chat/c", 405)),
        *(("GET", "/api/chat/c", 204), ("GET", "/api/chat/c/stream", 204), ("DELETE", "/api/chat/c", 204)),
        *(("GET", "/api/chat/a%2Fb/stream", 204), ("GET", "/api/chat/%F0%9F%98%80", 204)),
        *(("GET", "/", 404), ("POST", "/", 404), ("GET", "/api/chatter", 404), ("POST", "/api/chatter", 404)),
        *(("GET", "/api/chat/%00", 404), ("DELETE", "/api/chat/a%0Ab", 404), ("GET", f"/api/chat/{'x' * 513}", 404)),
        ("GET", "/api/chat//stream", 404),
    ],
)
def test_methods_and_paths(method: str, path: str, status: int) -> None:
    app, _ = made()

    async def act(page: Page) -> httpx.Response:
        json = body("c", says("Hi")) if method == "POST" else None
        return await page.client.request(method, path, json=json)

    response = visit(app, act)
    assert response.status_code == status
    assert (status == 405) == ("allow" in response.headers)


@pytest.mark.parametrize("raw", [True, False])
def test_an_id_in_an_address_is_quoted(raw: bool) -> None:
    seen: list[str] = []
    app = web.chat(Fake("Hi"), MemorySessions(), path="/ü/chat", allow=lambda request, id: bool(seen.append(id)))

    async def without_raw_path(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, **({} if raw else {"raw_path": None})}, receive, send)

    async def act(page: Page) -> None:
        for id in ("c", "a%2Fstream", "%F0%9F%98%80", "stream", "a%20b", "%25"):
            assert (await page.client.get(f"/ü/chat/{id}/stream?x=/stream")).status_code == 404
            assert (await page.client.delete(f"/ü/chat/{id}")).status_code == 404

    visit(without_raw_path, act)
    ids = [id for id in ["c", "a/stream", "😀", "stream", "a b", "%"] for _ in range(2)]
    if not raw:  # the address of the conversation "a/stream" is not quoted, so it is the stream of "a"
        ids[3] = "a"
    assert seen == ids


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_other_kinds_of_connection_are_not_served(kind: str) -> None:
    app, _ = made()
    with pytest.raises(RuntimeError, match=kind):
        asyncio.run(app({"type": kind}, None, None))


def test_a_body_that_is_too_long_is_refused() -> None:
    app, _ = made(max_body=1000)

    async def act(page: Page) -> list[int]:
        async def pieces() -> Any:
            for _ in range(100):
                yield b" " * 100

        json = {"content-type": "application/json"}
        whole = await page.say("x" * 1000)
        return [whole.status_code, (await page.client.post("/api/chat", content=pieces(), headers=json)).status_code]

    assert visit(app, act) == [413, 413]


class Broken:
    """A store that fails with this reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def load(self, id: str) -> Any:
        raise RunError(self._reason, "the secret place is on fire")

    save = delete = load


@pytest.mark.parametrize(("reason", "status"), [("store_unavailable", 503), ("unreadable", 500)])
def test_a_broken_store_is_logged_once_and_not_told(reason: str, status: int, caplog: pytest.LogCaptureFixture) -> None:
    response = visit(web.chat(Fake("Hi"), Broken(reason)), lambda page: page.say("Hi"))
    assert (response.status_code, response.json()["error"]["code"]) == (status, reason)
    assert "secret" not in response.text
    (record,) = [record for record in caplog.records if record.name == "rxllm"]
    assert "secret place" in record.getMessage()


class Buggy(MemorySessions):
    """A store of a user, whose method `breaks` raises an exception of its driver."""

    breaks = ""

    async def load(self, id: str) -> SavedSession:
        self.check("load")
        return await super().load(id)

    async def save(self, session: Session, version: int = 0) -> SavedSession:
        self.check("save")
        return await super().save(session, version)

    def check(self, method: str) -> None:
        if method == self.breaks:
            raise KeyError("the secret place is on fire")


@pytest.mark.parametrize("method", ["load", "save"])
def test_an_exception_of_a_users_store_is_logged_and_not_told(method: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Buggy()
    store.breaks = method

    response = visit(web.chat(Fake("Hi"), store), lambda page: page.say("Hi"))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "store_failed")
    assert "secret" not in response.text
    assert all("secret place" in str(record.exc_info) for record in caplog.records if record.name == "rxllm")
    assert caplog.records


def test_a_models_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = made(["Hel", AdapterError("provider_unavailable", "a secret address")])
    with caplog.at_level(logging.WARNING, "rxllm"):
        response = visit(app, lambda page: page.say("Hi"))
    assert "secret" not in response.text
    assert sum("a secret address" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize(
    "options",
    [
        *({"protocol": "rxllm"}, {"busy": "later"}, {"path": "api"}, {"path": "/api/"}, {"path": ""}, {"system": 3}),
        *(
            {"client_tools": "locate"},
            {"max_body": 0},
            {"max_session": 0},
            {"max_running": 0},
            {"max_per_minute": 0},
            {"allow": True},
        ),
        *({"origins": "https://example.org"}, {"origins": ["*"]}, {"origins": ["https://example.org/"]}),
        {"store": {}},
    ],
)
def test_arguments_are_checked(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValidationError) as caught:
        web.chat(Fake("Hi"), **{"store": MemorySessions(), **options})
    assert caught.value.errors[0][0] == (name,)


def test_an_engine_is_checked() -> None:
    with pytest.raises(rxllm.LLMError):
        web.chat("nothing:at-all", MemorySessions())
