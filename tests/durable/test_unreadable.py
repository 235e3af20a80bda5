"""Runs and sessions with text that has no encoding, and with data of the store that cannot be read."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse
from starlette.routing import Route

import rxllm
from rxllm import ChatResult, Fake, Message, RunError, Session, Thread, ToolCall, ValidationError, serializer
from rxllm.durable import Ending, Record, Run, Runs, Store, open_runs
from rxllm.durable._sqlite import SQLiteStore
from rxllm.events import Custom, MessageStarted, TextDelta, ToolExecutionCompleted
from rxllm.session import stream_reply
from tests.durable.conftest import MakeStore
from tests.durable.support import in_loop, take_over
from tests.waiting import until

pytestmark = pytest.mark.sockets

HALF = "\ud83d"
GARBAGE = b'{"type": "text_delta", "del'


@rxllm.tool
def names() -> list[str]:
    """The names of files that were not written as UTF-8."""
    return [os.fsdecode(b"caf\xe9.txt")]


def build_chat(input: Any) -> Any:
    return rxllm.stream(Fake(ToolCall("c0", "names", {}), ["Half ", HALF, " of it"]), input, tools=[names])


def build_turn(input: Any, session: Session) -> Any:
    return stream_reply(rxllm.Engine(Fake(ToolCall("c0", "names", {}), HALF), tools=[names]), session, input)


def build_slow(input: Any) -> Any:
    return rxllm.stream(Fake(["Half ", ("delay", 60)]), input)


FACTORIES: dict[str, Any] = {"chat": build_chat, "turn": build_turn, "slow": build_slow}


def opened(make_store: MakeStore, **options: Any) -> Runs:
    return open_runs(make_store(), FACTORIES, **options)


# Text that has no encoding


@pytest.mark.parametrize("input", [HALF, ["a", {"b": HALF}], {HALF: 1}, ("a", (HALF,))])
def test_half_an_emoji_of_a_caller_is_refused_at_the_call(make_store: MakeStore, input: Any) -> None:
    async def main() -> None:
        async with opened(make_store) as runs:
            with pytest.raises(
                ValidationError, match=r"input contains a lone surrogate.*; pass text that can be encoded"
            ):
                runs.start("chat", input)
            assert await runs.list() == []

    in_loop(main)


@pytest.mark.parametrize("method", ["watch", "result", "cancel", "get", "session", "delete_session"])
def test_an_id_without_an_encoding_is_refused_at_the_call(make_store: MakeStore, method: str) -> None:
    async def main() -> None:
        async with opened(make_store) as runs:
            with pytest.raises(ValidationError, match=r"id must be"):
                getattr(runs, method)(HALF)
            with pytest.raises(ValidationError, match=r"id must be"):
                runs.start("chat", "Hi", id=HALF)
            with pytest.raises(ValidationError, match=r"session\.id must be"):
                runs.save_session(Session(id=HALF))

    in_loop(main)


def test_names_and_words_without_an_encoding_are_kept_and_come_back(make_store: MakeStore) -> None:
    async def main() -> None:
        async with opened(make_store) as runs:
            id = await runs.start("chat", "Hi")
            result = await runs.result(id)
            assert isinstance(result, ChatResult)
            events = [event async for event in runs.watch(id)]
            assert ["caf\udce9.txt"] in [event.result for event in events if isinstance(event, ToolExecutionCompleted)]
            assert result.output_text == f"Half {HALF} of it"
            assert await runs.watch(id, folded=True).pipe(rxllm.operators.to_chat_result()) == result
            again = await runs.start("chat", result.thread)  # a value that a run has made is none of the caller's text
            assert isinstance(await runs.result(again), ChatResult)

    in_loop(main)


def test_a_session_that_has_heard_half_an_emoji_goes_on_and_can_be_deleted(make_store: MakeStore) -> None:
    async def main() -> None:
        async with opened(make_store) as runs:
            for _ in range(2):
                saved = await runs.session("ada")
                await runs.result(await runs.start("turn", "Hi", session=saved))
            saved = await runs.session("ada")
            assert [message.text for message in saved.session.messages if message.role == "assistant"][-1] == HALF
            assert (await runs.save_session(saved.session, saved.version)).session == saved.session
            await runs.delete_session("ada")
            assert (await runs.session("ada")).session == Session(id="ada")

    in_loop(main)


def test_a_run_that_has_heard_half_an_emoji_is_recovered(make_store: MakeStore) -> None:
    """Its journal and its log have it; another process goes on with them."""

    def build(*end: Any) -> Any:
        return lambda input: rxllm.stream(
            Fake(ToolCall("c0", "names", {}), [HALF, *end]),
            Thread((Message("user", f"{input} {HALF}"),)),
            tools=[names],
        )

    async def main() -> None:
        async with open_runs(make_store(), {"chat": build(("delay", 60))}) as runs:
            id = await runs.start("chat", "Hi")
            await runs.watch(id).filter(lambda event: isinstance(event, TextDelta)).first()
        async with open_runs(make_store(), {"chat": build()}) as runs:
            await take_over(runs, id)
            result = await runs.result(id)
            assert isinstance(result, ChatResult)
            assert result.output_text == HALF

    in_loop(main)


def test_an_endpoint_refuses_half_an_emoji_with_a_status(make_store: MakeStore) -> None:
    """The endpoint of docs/web.md, with a handler for what a caller gets wrong."""

    async def main() -> None:
        async with opened(make_store) as runs:

            async def start(request: HTTPRequest) -> JSONResponse:
                return JSONResponse(
                    {"id": await runs.start("chat", (await request.json())["question"])}, status_code=202
                )

            def refused(request: HTTPRequest, error: Exception) -> JSONResponse:
                assert isinstance(error, rxllm.LLMError)
                return JSONResponse({"error": error.reason}, status_code=400)

            service = Starlette(
                routes=[Route("/answers", start, methods=["POST"])], exception_handlers={ValidationError: refused}
            )
            transport = httpx.ASGITransport(service)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
                answer = await browser.post("/answers", content=b'{"question": "\\ud83d"}')
                assert (answer.status_code, answer.json()) == (400, {"error": "invalid_option"})
            assert await runs.list() == []

    in_loop(main)


# Data that cannot be read


def event(text: str) -> bytes:
    return serializer.to_json(TextDelta(text)).encode()


def custom(name: str, data: Any) -> bytes:
    return serializer.to_json(Custom(name, data)).encode()


async def left(store: Store, *, input: bytes = custom("input", "Hi"), events: Any = (), records: Any = ()) -> None:
    """Leave a run as a process that has died leaves it."""
    await store.create(Run("run", "slow", input))
    lease = await store.claim("run", "somebody", 0.0)
    assert lease is not None
    await store.append(lease, events, records)


DAMAGED: dict[str, dict[str, Any]] = {
    "input": {"input": b"{"},
    "input that is no UTF-8": {"input": b"\xff\xfe\xfd"},
    "input of a turn": {"input": b'{"type": "custom", "name": "turn", "data": {"run": '},
    "input of a turn without its session": {"input": custom("turn", {"run": "run"})},
    "input of something else": {"input": event("Hi")},
    "event": {"events": [event("a"), GARBAGE, event("b")]},
    "event of an unknown class": {"events": [b'{"type": "text_epsilon", "v": 1}']},
    "event that is a value": {"events": [serializer.to_json(rxllm.user("Hi")).encode()]},
    "event that is no UTF-8": {"events": [b"\xff\xfe\xfd"]},
    "answer": {"records": [Record("response", "/a/1", GARBAGE)]},
    "answer that was left": {"records": [Record("left", "/a/1", b'{"seconds": 1.0, "events": "[{"}')]},
    "call": {"records": [Record("begin", "/a", GARBAGE)]},
    "outcome": {"records": [Record("finish", "/a", b"[1]")]},
}


async def why_failed(runs: Runs, id: str = "run") -> RunError:
    with pytest.raises(RunError) as caught:
        await runs.result(id)
    return caught.value


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_run_that_cannot_be_read_fails_once_with_its_reason(
    make_store: MakeStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = make_store()
        await left(store, **DAMAGED[damage])
        async with opened(make_store) as runs:
            watcher = asyncio.ensure_future(why_failed(runs))
            other = await runs.start("chat", "Hi", here=False)
            assert sorted(await runs.recover()) == sorted(["run", other])
            assert (await watcher).reason == "unreadable"
            assert isinstance(await runs.result(other), ChatResult)
            await until(lambda: not runs.produced)
            assert await runs.recover() == ()
            run = await runs.get("run")
            assert run.status == "failed"
            assert run.error is not None
            error = serializer.from_json(run.error)
            assert (error.reason, error.run_id) == ("unreadable", "run")
            assert "cannot be read: " in error.message
            assert (await why_failed(runs)).reason == "unreadable"
            assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
                f"run run has failed: {error.message}"
            ]
            assert "Traceback" not in caplog.text
            assert await runs.expire(0) == 2
        await store.close()

    in_loop(main)


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("is_held", [False, True])
def test_a_run_that_cannot_be_read_can_be_cancelled(make_store: MakeStore, damage: str, is_held: bool) -> None:
    async def main() -> None:
        store = make_store()
        await left(store, **DAMAGED[damage])
        async with opened(make_store) as runs:
            lease = await store.claim("run", "somebody", 60) if is_held else None
            await runs.cancel("run")
            if lease is not None:
                assert (await runs.get("run")).ended_at is None
                await store.release(lease)
                assert await runs.recover() == ("run",)
                await until(lambda: not runs.produced)
            assert (await runs.get("run")).status == "cancelled"
            assert await runs.expire(0) == 1
        await store.close()

    in_loop(main)


@pytest.mark.parametrize("error", [b"{", b"1", serializer.to_json(rxllm.user("Hi")).encode()])
def test_an_error_that_cannot_be_read_is_one(make_store: MakeStore, error: bytes) -> None:
    async def main() -> None:
        store = make_store()
        await store.create(Run("run", "slow", custom("input", "Hi")))
        lease = await store.claim("run", "somebody", 60)
        assert lease is not None
        await store.append(lease, [], ending=Ending("failed", error))
        async with opened(make_store) as runs:
            assert (await why_failed(runs)).reason == "unreadable"
        await store.close()

    in_loop(main)


def test_a_watcher_gets_the_readable_events_and_then_an_error(make_store: MakeStore) -> None:
    async def main() -> None:
        store = make_store()
        started = serializer.to_json(MessageStarted(Message("assistant", ""))).encode()
        await left(store, events=[started, event("a"), GARBAGE, event("b")])
        async with opened(make_store) as runs:
            for after in (0, 1):
                seen: list[Any] = []
                with pytest.raises(RunError, match=r"run error \(run\): event 3 cannot be read: "):
                    await runs.watch("run", after=after).do_action(seen.append)
                assert [type(event) for event in seen] == [MessageStarted, TextDelta][after:]
        await store.close()

    in_loop(main)


DOCUMENTS = {
    "nothing": GARBAGE,
    "no UTF-8": b"\xff\xfe\xfd",
    "another value": serializer.to_json(rxllm.user("Hi")).encode(),
    "a turn": b'{"type": "custom", "name": "turn", "data": {"run": ',
    "a turn without its session": custom("turn", {"run": "run", "factory": "turn", "input": 1}),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_session_that_cannot_be_read_is_an_error_and_can_be_deleted(make_store: MakeStore, name: str) -> None:
    async def main() -> None:
        store = make_store()
        await store.write("session:ada", 0, DOCUMENTS[name])
        async with opened(make_store) as runs:
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: runs.session("ada"),
                lambda: runs.save_session(Session(id="ada"), 1),
            ]
            for call in calls:
                with pytest.raises(RunError, match=r"the session 'ada' cannot be read.*delete_session") as caught:
                    await call()
                assert caught.value.reason == "unreadable"
            await runs.delete_session("ada")
            saved = await runs.session("ada")
            assert (saved.session, saved.version) == (Session(id="ada"), 2)
            await runs.result(await runs.start("turn", "Hi", session=saved))
        await store.close()

    in_loop(main)


@pytest.mark.parametrize("what", ["event", "input"])
def test_a_turn_that_cannot_be_read_leaves_a_session_that_goes_on(make_store: MakeStore, what: str) -> None:
    """What is committed before the event is kept; the session is there where the input of the run is not."""

    async def main() -> None:
        store = make_store()
        session = Session("ada", Thread((rxllm.user("Hello"),)))
        data = custom("turn", {"run": "run", "factory": "turn", "session": session, "input": "Hi"})
        await store.write("session:ada", 0, data)
        started = serializer.to_json(MessageStarted(Message("assistant", ""))).encode()
        damage = {"events": [started, event("a"), GARBAGE]} if what == "event" else {"input": data[:-20]}
        await left(store, **{"input": data, **damage})
        async with opened(make_store) as runs:
            assert (await runs.session("ada")).run == "run"
            await runs.recover()
            assert (await why_failed(runs)).reason == "unreadable"
            await until(lambda: not runs.produced)
            saved = await runs.session("ada")
            assert saved.run is None
            kept = ["Hello", "a"] if what == "event" else ["Hello"]
            assert [message.text for message in saved.session.messages] == kept
            await runs.result(await runs.start("turn", "Again", session=saved))
            await runs.delete_session("ada")
        await store.close()

    in_loop(main)


def test_rows_that_hold_text_in_place_of_bytes_are_read(tmp_path: Path) -> None:
    """As a hand leaves them, or another program."""

    async def main() -> None:
        store = SQLiteStore(tmp_path / "runs.db")
        async with open_runs(store, {"slow": build_slow, "turn": build_turn}) as runs:
            await runs.result(await runs.start("turn", "Hi", session=await runs.session("ada")))
            await left(store, events=[event("a")])
            with sqlite3.connect(tmp_path / "runs.db") as db:
                for table, column in (
                    ("runs", "input"),
                    ("events", "data"),
                    ("records", "data"),
                    ("documents", "data"),
                ):
                    db.execute(f"UPDATE {table} SET {column} = CAST({column} AS TEXT)")
            db.close()
            assert (await runs.session("ada")).run is None
            await runs.cancel("run")
            assert (await runs.get("run")).status == "cancelled"

    in_loop(main)
