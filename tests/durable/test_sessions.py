"""Sessions in the store of the runs: one turn at a time, and none is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest

import rxllm
from rxllm import ChatResult, Fake, RunError, Session, ToolCall, serializer, tool
from rxllm.durable import Runs, SavedSession, open_runs
from rxllm.durable.testing import Interposed
from rxllm.session import stream_reply, stream_resume
from tests.durable import talking
from tests.durable.conftest import MakeStore
from tests.durable.support import forked, in_loop
from tests.waiting import until

pytestmark = pytest.mark.sockets


@tool(approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


def build_answer(text: str, session: Session) -> Any:
    return talking.build_answer(text, session)


def build_shop(input: Any, session: Session) -> Any:
    engine = rxllm.Engine(Fake(ToolCall("c0", "pay", {"amount": 5}), "Paid."), tools=[pay])
    if isinstance(input, dict):
        return stream_resume(Fake("Paid."), session, approvals=input["approvals"], tools=[pay])
    return stream_reply(engine, session, input)


def build_nothing(input: Any, session: Session) -> Any:
    raise KeyError(input)


FACTORIES: dict[str, Any] = {"answer": build_answer, "shop": build_shop, "nothing": build_nothing}


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages]


async def ended(runs: Runs, id: str) -> None:
    async def has_ended() -> bool:
        await runs.recover()
        return (await runs.get(id)).ended_at is not None

    await until(has_ended)


async def partial(runs: Runs) -> SavedSession:
    """The session, once it has a part of an answer."""
    return await until(lambda: runs.session("ada"), lambda saved: texts(saved.session)[-1:] == ["llats"])


def test_the_open_turn_is_known_without_reading_the_session(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_runs(make_store(), FACTORIES) as runs:
        assert runs.open_run("ada").run() is None
        run = runs.start("answer", "abc", session=runs.session("ada").run(), here=False).run()
        with monkeypatch.context() as patched:
            patched.setattr(serializer, "from_json", None)  # whoever read the session would fail
            assert runs.open_run("ada").run() == run
        runs.cancel(run).run()
        assert runs.open_run("ada").run() is None


def test_turn_follows_turn(make_store: MakeStore) -> None:
    with open_runs(make_store(), FACTORIES) as runs:
        saved = runs.session("ada").run()
        assert saved == SavedSession(Session(id="ada"))
        for text in ("abc", "def"):
            result = runs.result(runs.start("answer", text, session=runs.session("ada").run()).run()).run()
            assert isinstance(result, ChatResult)
            assert result.output_text == text[::-1]
        saved = runs.session("ada").run()
        assert (texts(saved.session), saved.session.status) == (["abc", "cba", "def", "fed"], "completed")
        assert saved.run is None
        assert texts(runs.session("bob").run().session) == []
        runs.expire(0).run()
        assert runs.session("ada").run() == saved  # it outlives its runs


def test_an_image_in_a_file_stays_in_the_session(make_store: MakeStore) -> None:
    picture = rxllm.values.Image.from_file("cat.png")
    build: Any = {"look": lambda text, session: stream_reply(Fake("A cat."), session, rxllm.user(text, picture))}
    with open_runs(make_store(), build) as runs:
        for _ in range(2):
            runs.result(runs.start("look", "This?", session=runs.session("ada").run()).run()).run()
        messages = runs.session("ada").run().session.messages
    assert [
        part.image for message in messages for part in message.parts if isinstance(part, rxllm.values.ImagePart)
    ] == [
        picture,
        picture,
    ]


def test_approvals_wait_in_the_session(make_store: MakeStore) -> None:
    with open_runs(make_store(), FACTORIES) as runs:
        runs.result(runs.start("shop", "Pay!", session=runs.session("ada").run()).run()).run()
        saved = runs.session("ada").run()
        assert saved.session.status == "awaiting_tools"
        id = runs.start("shop", {"approvals": {"c0": True}}, session=saved).run()
        runs.result(id).run()
        assert texts(runs.session("ada").run().session) == ["Pay!", "", "paid 5", "Paid."]


def test_while_a_turn_goes_on_the_session_has_its_beginning_and_its_run(make_store: MakeStore) -> None:
    async def main() -> None:
        async with open_runs(make_store(), FACTORIES) as runs, open_runs(make_store(), {}) as others:
            id = await runs.start("answer", "stall", session=await runs.session("ada"))
            saved = await partial(others)
            assert saved.run == id
            assert texts(saved.session) == ["stall", "llats"]
            for call in (
                others.save_session(saved.session, saved.version),
                runs.start("answer", "again", session=saved),
                runs.start("answer", "again", session=SavedSession(Session(id="ada"))),
            ):
                with pytest.raises(RunError) as caught:
                    await call
                assert caught.value.reason == "conflict"
            await others.cancel(id)
            with pytest.raises(RunError, match="cancelled"):
                await others.result(id)
            saved = await others.session("ada")
            assert (texts(saved.session), saved.run) == (["stall", "llats"], None)
            assert saved.session.messages[-1].metadata == {"partial": "cancelled"}
            await runs.result(await runs.start("answer", "abc", session=saved))
            assert texts((await runs.session("ada")).session) == ["stall", "llats", "abc", "cba"]
            assert len(await runs.list()) == 2  # no other was kept

    in_loop(main)


def test_a_turn_that_nobody_has_begun_to_produce_changes_nothing_when_it_is_cancelled(make_store: MakeStore) -> None:
    with open_runs(make_store(), FACTORIES) as runs:
        saved = runs.save_session(Session(id="ada", context={"user": 7})).run()
        id = runs.start("answer", "abc", session=saved, here=False).run()
        open_turn = runs.session("ada").run()
        assert (open_turn.session, open_turn.run) == (saved.session, id)
        runs.cancel(id).run()
        runs.expire(0).run()
        assert runs.session("ada").run() == SavedSession(saved.session, open_turn.version + 1)


def test_a_turn_that_fails_leaves_a_session_that_goes_on(make_store: MakeStore) -> None:
    with open_runs(make_store(), FACTORIES) as runs:
        id = runs.start("nothing", "abc", session=runs.session("ada").run()).run()
        with pytest.raises(RunError, match="the factory 'nothing' raised KeyError"):
            runs.result(id).run()
        saved = runs.session("ada").run()
        assert (saved.session, saved.run) == (Session(id="ada"), None)
        runs.result(runs.start("answer", "abc", session=saved).run()).run()
        assert texts(runs.session("ada").run().session) == ["abc", "cba"]


def test_a_session_that_is_deleted_begins_anew(make_store: MakeStore) -> None:
    with open_runs(make_store(), FACTORIES) as runs:
        runs.delete_session("ada").run()  # there is none
        for name in ("ada", "bob"):
            runs.result(runs.start("answer", "abc", session=runs.session(name).run()).run()).run()
        id = runs.start("answer", "stall", session=runs.session("ada").run(), here=False).run()
        with pytest.raises(RunError, match="the session 'ada' has an open turn") as caught:
            runs.delete_session("ada").run()
        assert caught.value.reason == "conflict"
        runs.cancel(id).run()
        before = runs.session("ada").run()
        runs.delete_session("ada").run()
        after = runs.session("ada").run()
        assert after == SavedSession(Session(id="ada"), before.version + 1)
        with pytest.raises(RunError, match="read it again"):
            runs.start("answer", "late", session=before).run()
        assert texts(runs.session("bob").run().session) == ["abc", "cba"]
        runs.result(runs.start("answer", "def", session=runs.session("ada").run()).run()).run()
        assert texts(runs.session("ada").run().session) == ["def", "fed"]


def test_a_session_is_kept_in_place_of_one_version(make_store: MakeStore) -> None:
    with open_runs(make_store(), FACTORIES) as runs:
        first = runs.save_session(Session(id="ada")).run()
        second = runs.save_session(first.session.append_user("Hi"), first.version).run()
        assert runs.session("ada").run() == second
        for version in (0, first.version, 99):
            with pytest.raises(RunError) as caught:
                runs.save_session(Session(id="ada"), version).run()
            assert caught.value.reason == "conflict"
        assert runs.session("ada").run() == second


def test_sessions_of_older_versions_are_read(make_store: MakeStore) -> None:
    """The forms of both documents: the session, and an open turn."""
    message = '{"$": "Message", "role": "user", "content": "Hi"}'
    session = f'"$": "Session", "id": "ada", "thread": {{"$": "Thread", "messages": [{message}]}}'
    turn = f'"run": "r1", "factory": "answer", "session": {{{session}}}, "input": "abc"'

    async def main() -> None:
        store = make_store()
        await store.write("session:ada", 0, f'{{{session}, "v": 1}}'.encode())
        async with open_runs(store, FACTORIES) as runs:
            assert texts((await runs.session("ada")).session) == ["Hi"]
            document = f'{{"type": "custom", "name": "turn", "data": {{{turn}}}, "v": 1}}'
            await store.write("session:ada", 1, document.encode())
            assert (await runs.session("ada")).run == "r1"
            await ended(runs, "r1")
            assert texts((await runs.session("ada")).session) == ["Hi", "abc", "cba"]

    in_loop(main)


def test_new_documents_have_the_form_of_the_old_ones(make_store: MakeStore) -> None:
    async def main() -> None:
        store = make_store()
        async with open_runs(store, FACTORIES) as runs:
            id = await runs.start("answer", "abc", session=await runs.session("ada"), here=False)
            version, document = await store.read("session:ada") or (0, b"")
            turn = serializer.from_json(document)
            assert version == 1
            assert (turn.name, {*turn.data}) == ("turn", {"run", "factory", "session", "input"})
            assert (await store.load(id)).input == document

    in_loop(main)


def test_wrong_arguments_are_told_at_the_call(make_store: MakeStore) -> None:
    with open_runs(make_store(), FACTORIES) as runs:
        wrong: list[Callable[[], object]] = [
            lambda: runs.session(""),
            lambda: runs.save_session(Session()),
            lambda: runs.save_session(Session(id="ada"), -1),
            lambda: runs.save_session("ada"),  # type: ignore[arg-type]
            lambda: runs.start("answer", "abc", session="ada"),  # type: ignore[arg-type]
            lambda: runs.start("answer", "abc", session=SavedSession(Session())),
            lambda: runs.start("answer", "abc", session=SavedSession(Session(id="ada")), id="mine"),
        ]
        for call in wrong:
            with pytest.raises(rxllm.ValidationError, match=r"id|session|version"):
                call()
        assert runs.list().run() == []


# Several at once


def test_of_many_that_reply_at_once_one_does_and_the_others_can_after_it(make_store: MakeStore) -> None:
    rounds = 4

    async def reply(runs: Runs, text: str) -> bool:
        saved = await runs.session("ada")
        try:
            await runs.result(await runs.start("answer", text, session=saved))
        except RunError as error:
            if error.reason != "conflict":
                raise
            if saved.run is not None:
                await runs.result(saved.run)
            return False
        return True

    async def talk(name: str) -> int:
        conflicts = 0
        async with open_runs(make_store(), FACTORIES) as runs:
            for number in range(rounds):
                while not await reply(runs, f"{name}{number}"):
                    conflicts += 1
        return conflicts

    async def main() -> None:
        conflicts = await asyncio.gather(*map(talk, "abcd"))
        assert sum(conflicts) > 0
        async with open_runs(make_store(), {}) as runs:
            said = texts((await runs.session("ada")).session)
            assert sorted(said[::2]) == [f"{name}{number}" for name in "abcd" for number in range(rounds)]
            assert [text[::-1] for text in said[::2]] == said[1::2]
            assert len(await runs.list()) == 4 * rounds

    in_loop(main)


@pytest.mark.judges
def test_of_two_processes_one_replies_and_the_other_gets_a_conflict(make_store: MakeStore) -> None:
    both = ("abc", "xyz")
    with ExitStack() as stack:
        pipes = [stack.enter_context(forked(talking.talk, make_store, "reply", text))[1] for text in both]
        assert [pipe.recv() for pipe in pipes] == ["ready", "ready"]
        for pipe in pipes:
            pipe.send("reply")
        outcomes = [pipe.recv() for pipe in pipes]
    assert sorted(outcomes) == ["conflict", "replied"]
    winner, loser = both if outcomes[0] == "replied" else both[::-1]
    with forked(talking.talk, make_store, "now", loser) as (_, pipe):
        assert pipe.recv() == "replied"
    with open_runs(make_store(), {}) as runs:
        assert texts(runs.session("ada").run().session) == [winner, winner[::-1], loser, loser[::-1]]


# Killed


def kill_in_its_text(make_store: MakeStore) -> None:
    with forked(talking.talk, make_store, "text") as (process, pipe):
        assert pipe.recv() == "ready"
        process.kill()
        process.join()


@pytest.mark.judges
def test_a_turn_that_was_killed_is_there_and_goes_on(make_store: MakeStore) -> None:
    kill_in_its_text(make_store)

    async def main() -> None:
        async with open_runs(
            make_store(), {"answer": lambda text, session: stream_reply(Fake("Go on"), session, text)}
        ) as runs:
            saved = await runs.session("ada")
            assert texts(saved.session) == ["stall", "llats"]
            assert saved.session.messages[-1].metadata == {"partial": "cancelled"}
            assert saved.run is not None
            await ended(runs, saved.run)
            saved = await runs.session("ada")
            assert (texts(saved.session), saved.run) == (["stall", "Go on"], None)

    in_loop(main)


@pytest.mark.judges
def test_a_turn_that_was_killed_can_be_left_as_it_is(make_store: MakeStore) -> None:
    kill_in_its_text(make_store)

    async def main() -> None:
        async with open_runs(make_store(), {}) as runs:

            async def cancelled() -> SavedSession:
                """The session after another attempt: it takes until the lease has expired."""
                run = (await runs.session("ada")).run
                assert run is not None
                await runs.cancel(run)
                return await runs.session("ada")

            saved = await until(cancelled, lambda saved: saved.run is None)
            assert texts(saved.session) == ["stall", "llats"]

    in_loop(main)


POINTS = [f"{when}:{method}" for method in ("write", "create", "claim", "append") for when in ("before", "after")]


@pytest.mark.judges
@pytest.mark.parametrize("point", POINTS)
def test_wherever_it_is_killed_the_turn_is_there_as_a_whole_or_not_at_all(make_store: MakeStore, point: str) -> None:
    with forked(talking.talk, make_store, point, "abc") as (process, _):
        process.join()
        assert process.exitcode == -signal.SIGKILL

    async def main() -> None:
        async with open_runs(make_store(), FACTORIES) as runs:
            saved = await runs.session("ada")
            assert (saved.run is None) is (point == "before:write")
            if saved.run is not None:
                await ended(runs, saved.run)
            said = texts((await runs.session("ada")).session)
            assert said == ([] if point == "before:write" else ["abc", "cba"])
            assert len(await runs.list()) == len(said) / 2

    in_loop(main)


def test_a_turn_is_kept_before_its_run_ends(make_store: MakeStore) -> None:
    """Whoever dies between both has not lost it, even if the run is deleted before anybody looks."""

    def refuse(method: str, arguments: Any) -> None:
        if method == "append" and arguments[3] is not None:
            raise RunError("lease_lost", "it is somebody else's")

    async def main() -> None:
        store = make_store()
        async with open_runs(Interposed(store, before=refuse), FACTORIES) as runs:
            id = await runs.start("answer", "abc", session=await runs.session("ada"))
            await until(lambda: not runs.produced)
            document = await store.read("session:ada")
            assert document is not None
            assert texts(serializer.from_json(document[1])) == ["abc", "cba"]
            async with open_runs(make_store(), FACTORIES) as others:
                await ended(others, id)
                assert await store.read("session:ada") == document

    in_loop(main)


@pytest.mark.judges  # whoever dies leaves a lease, which must outlast a slow disk
@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("call", ["load", "claim", "cancel", "read", "events", "write", "append"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_turn_that_was_cancelled_stays_so_whoever_dies(
    make_store: MakeStore, when: str, call: str, is_stopped: bool
) -> None:
    """The process that cancels it dies on the way, and the run is expired before anybody looks at the session."""
    asked: list[str] = []
    is_armed = False

    def model(request: Any) -> Any:
        asked.append(request.messages[-1].text)
        return ["One ", ("delay", 60)]

    def build(input: str, session: Session) -> Any:
        return stream_reply(Fake(model), session, input)

    def die(method: str, arguments: tuple[Any, ...]) -> None:
        if is_armed and method == call:
            raise ConnectionAbortedError("killed")

    async def main() -> None:
        nonlocal is_armed
        async with open_runs(make_store(), {"slow": build}) as runs:
            id = await runs.start("slow", "Hi", session=await runs.session("ada"), here=is_stopped)
            if is_stopped:
                await runs.watch(id).filter(lambda event: isinstance(event, rxllm.TextDelta)).first()
        asked.clear()
        hooks: Any = {when: die}
        async with open_runs(Interposed(make_store(), **hooks), {"slow": build}, lease=1.0) as runs:
            is_armed = True
            with suppress(ConnectionAbortedError):
                await runs.cancel(id)
            is_armed = False
        async with open_runs(make_store(), {"slow": build}) as runs:
            if not (await runs.get(id)).is_cancelled:
                return  # it died before it had cancelled anything
            await ended(runs, id)
            assert (await runs.get(id)).status == "cancelled"
            await runs.expire(0)
            saved = await runs.session("ada")
            assert (await runs.recover(), saved.run, asked) == ((), None, [])
            assert [message.text for message in saved.session.messages] == (["Hi", "One "] if is_stopped else [])

    in_loop(main)
