"""Runs that are started, watched, cancelled and recovered."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from reactivex import of, throw

import rxllm
from rxllm import AdapterError, ChatResult, Fake, OpenAIChat, RunError, StepResult, StreamCollector, ToolCall
from rxllm import operators as ops
from rxllm.durable import Runs, open_runs, open_store
from rxllm.durable._store import LONGEST_LEASE
from rxllm.durable.testing import Interposed
from rxllm.events import ChatCompleted, Event, StepCompleted, StepRestarted, TextDelta
from rxllm.testing.loopback import Loopback
from tests.closing import STALLED, also_next, assert_closed, next_call
from tests.durable.support import RAN, add, gated, in_loop, take_over
from tests.waiting import turns, until

pytestmark = pytest.mark.sockets

WORDS = ["Once", " upon", " a", " time"]


def build_story(input: Any) -> Any:
    return rxllm.stream(Fake(WORDS), input)


def build_chat(input: Any) -> Any:
    return rxllm.stream(Fake(ToolCall("c0", "add", {"x": 1}), "two"), input, tools=[add])


def build_slow(input: Any) -> Any:
    return rxllm.stream(Fake(["Once", ("delay", 60), " upon"]), input)


FACTORIES: dict[str, Any] = {"story": build_story, "chat": build_chat, "slow": build_slow}


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.judges)])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "runs.db") if request.param == "sqlite" else request.getfixturevalue("redis_server").url


def folded(events: list[Event]) -> StreamCollector:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state


def test_a_run_emits_the_stream_of_its_factory(path: str) -> None:
    with open_runs(path, FACTORIES) as runs:
        id = runs.start("chat", "1 + 1?").run()
        assert runs.result(id).run() == build_chat("1 + 1?").run().result
        events = list(runs.watch(id))
        assert events == list(build_chat("1 + 1?"))
        assert list(runs.watch(id, after=5)) == events[5:]
        assert list(runs.watch(id, after=len(events))) == []
        (run,) = runs.list("completed").run()
        assert (run.id, run.factory, run.events) == (id, "chat", len(events))


def test_it_works_with_await_too(path: str) -> None:
    async def main() -> None:
        async with open_runs(path, FACTORIES) as runs:
            id = await runs.start("story", "A story?")
            result = await runs.result(id)
            assert isinstance(result, ChatResult)
            assert result.output_text == "Once upon a time"
            seen = [event async for event in runs.watch(id)]
            assert folded(seen).chat_result == result

    in_loop(main)


def test_the_input_is_any_value(path: str) -> None:
    def build(input: Any) -> Any:
        RAN.append(input)
        return rxllm.stream(Fake("Hi"), "Hi")

    halted = rxllm.chat(Fake("Hi"), "Hi").run()
    inputs = ["text", None, {"resume": halted, "approvals": {"c0": True}}, rxllm.Thread() + "Hi", (1, b"2")]
    with open_runs(path, {"any": build}) as runs:
        for input in inputs:
            runs.result(runs.start("any", input).run()).run()
    assert inputs == RAN


def test_the_result_of_a_run_is_that_of_its_stream(path: str) -> None:
    factories: dict[str, Any] = {
        "step": lambda input: rxllm.stream_step(Fake("Hi"), input),
        "response": lambda input: rxllm.stream_generate(Fake("Hi"), input),
    }
    with open_runs(path, factories) as runs:
        assert runs.result(runs.start("step", "Hi").run()).run() == rxllm.step(Fake("Hi"), "Hi").run()
        assert runs.result(runs.start("response", "Hi").run()).run() == rxllm.generate(Fake("Hi"), "Hi").run()


def test_late_watchers_get_the_fold_and_then_live_events(path: str) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        model = gated(*"Once", gate, " upon")
        async with open_runs(path, {"story": lambda input: rxllm.stream(model, input)}) as runs:
            id = await runs.start("story", "A story?")
            await runs.watch(id).filter(lambda event: isinstance(event, TextDelta) and event.delta == "e").first()
            late: list[Event] = []
            watching = asyncio.ensure_future(runs.watch(id, folded=True).do_action(late.append))
            await until(lambda: any(isinstance(event, TextDelta) for event in late))
            gate.set()
            await watching
            every = [event async for event in runs.watch(id)]
            assert [event.delta for event in late if isinstance(event, TextDelta)] == ["Once", " upon"]
            assert len([event for event in every if isinstance(event, TextDelta)]) == 5
            assert folded(late).chat_result == folded(every).chat_result

    in_loop(main)


def test_another_process_watches_the_committed_events(path: str) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        factories: dict[str, Any] = {"story": lambda input: rxllm.stream(gated("Once", gate, " upon"), input)}
        async with open_runs(path, factories) as runs, open_runs(path, factories) as others:
            id = await runs.start("story", "A story?")
            seen: list[Event] = []
            watching = others.watch(id).subscribe(seen.append)
            await until(lambda: any(isinstance(event, TextDelta) for event in seen))
            watching.dispose()  # leaving is not stopping
            assert await others.recover() == ()
            assert runs.produced == (id,)
            gate.set()
            assert (await others.result(id)).output_text == "Once upon"

    in_loop(main)


def test_a_failure_is_that_of_every_watcher(path: str, caplog: pytest.LogCaptureFixture) -> None:
    error = AdapterError("rate_limited", "slow down", retry_after=3.0)
    factories: dict[str, Any] = {
        "fails": lambda input: throw(error),
        "raises": lambda input: {}["key"],
        "returns": lambda input: "no stream",
        "emits": lambda input: of(1, 2),
        "chats": lambda input: rxllm.chat(Fake("Hi"), "Hi"),
        "breaks": lambda input: build_story("Hi").map(lambda event: event.nothing),
        "turns": lambda input, session: build_story(input),
        "invalid": lambda input: rxllm.stream(Fake("Hi"), 7),
    }
    with open_runs(path, factories) as runs:
        ids = {name: runs.start(name).run() for name in factories}
        for read in (runs.watch, runs.result):
            with pytest.raises(AdapterError) as caught:
                read(ids["fails"]).run()
            assert caught.value == error
            for name, message in {
                "raises": "the factory 'raises' raised KeyError: 'key'",
                "returns": "the factory 'returns' must be a function that returns a stream",
                "emits": "the factory 'emits' emits int items, not events",
                "chats": r"the factory 'chats' emits ChatResult items, not events; use rxllm.stream\(...\)",
                "turns": "the factory 'turns' raised TypeError: .* 'session'",
            }.items():
                with pytest.raises(RunError, match=message) as failed:
                    read(ids[name]).run()
                assert (failed.value.reason, failed.value.run_id) == ("factory_failed", ids[name])
            with pytest.raises(rxllm.StreamError, match="AttributeError"):
                read(ids["breaks"]).run()
            with pytest.raises(rxllm.ValidationError, match="the factory 'invalid' raised: "):
                read(ids["invalid"]).run()
        assert {run.status for run in runs.list().run()} == {"failed"}
    logged = sorted(str(record.args[0]) for record in caplog.records if isinstance(record.args, tuple))
    runs_of_llm_errors = [ids[name] for name in ("fails", "returns", "emits", "chats")]
    assert logged == sorted(["breaks", "invalid", "raises", "turns", *runs_of_llm_errors])
    assert all(record.exc_info for record in caplog.records)


def test_wrong_arguments_are_told_at_the_call(path: str) -> None:
    with pytest.raises(rxllm.ValidationError, match="factories"):
        open_runs(path, {"chat": "build"})  # type: ignore[dict-item]
    for lease in (0, 601):
        with pytest.raises(rxllm.ValidationError, match="lease must be"):
            open_runs(path, FACTORIES, lease=lease)
    with pytest.raises(rxllm.ValidationError, match="flush_after must be"):
        open_runs(path, FACTORIES, flush_after=-1)
    with open_runs(path, FACTORIES) as runs:
        with pytest.raises(RunError, match=r"'caht' \(did you mean 'chat'\?\); the factories are: story, chat, slow"):
            runs.start("caht")
        with pytest.raises(rxllm.ValidationError, match="has no JSON form"):
            runs.start("chat", object())
        for wrong in (-1, "7", None):
            with pytest.raises(rxllm.ValidationError, match="after must be"):
                runs.watch("id", wrong)  # type: ignore[arg-type]
        for wrong in ("", 7):
            with pytest.raises(rxllm.ValidationError, match="id must be a non-empty string, or None"):
                runs.start("story", id=wrong)  # type: ignore[arg-type]
        with pytest.raises(rxllm.ValidationError, match="every must be"):
            runs.recover(every=0)
        with pytest.raises(rxllm.ValidationError, match="status must be"):
            runs.list("done")  # type: ignore[arg-type]
        for call in (runs.watch, runs.cancel, runs.result, runs.get):
            with pytest.raises(RunError) as caught:
                call("nobody").run()
            assert caught.value.reason == "unknown_run"
        runs.start("story", "Hi", id="mine").run()
        with pytest.raises(RunError) as caught:
            runs.start("story", "Hi", id="mine").run()
        assert caught.value.reason == "exists"


def test_the_repr_names_the_store_and_the_factories(path: str) -> None:
    with open_runs(path, FACTORIES) as runs:
        assert repr(runs) == f"Runs({open_store(path)!r}, story, chat, slow; 0 produced here)"


# Cancel


@pytest.mark.parametrize("elsewhere", [True, False])
def test_cancel_closes_the_connection_at_once(path: str, elsewhere: bool) -> None:
    """Elsewhere, once the producer is told, for which it does not wait until it renews its lease."""

    async def main() -> None:
        with Loopback(also_next(STALLED)) as server:
            engine = OpenAIChat(base_url=server.url, api_key="key")
            factories: dict[str, Any] = {"story": lambda input: rxllm.stream(engine, input, model="m")}
            async with open_runs(path, factories, lease=LONGEST_LEASE) as runs, open_runs(path, {}) as others:
                id = await runs.start("story", "A story?")
                seen: list[Event] = []
                ended: list[Exception] = []
                runs.watch(id).subscribe(seen.append, ended.append)
                await until(lambda: any(isinstance(event, TextDelta) for event in seen))
                await (others if elsewhere else runs).cancel(id)
                if elsewhere:
                    await until(lambda: bool(ended))
                await next_call(server)
                assert_closed(server.connections[0])
                await until(lambda: bool(ended))
                assert ended == [RunError("cancelled", run_id=id)]
                with pytest.raises(RunError):
                    await runs.result(id)
                (run,) = await runs.list("cancelled")
                assert run.events == len(seen)  # what had come is there
                await runs.cancel(id)  # it stays as it is

    in_loop(main)


def test_a_run_that_waits_is_cancelled_at_once(path: str) -> None:
    with open_runs(path, FACTORIES) as runs:
        id = runs.start("chat", "Hi", here=False).run()
        runs.cancel(id).run()
        assert runs.recover().run() == ()
        with pytest.raises(RunError, match="cancelled"):
            runs.result(id).run()
    assert RAN == []


# Going on


def test_a_run_waits_for_a_worker(path: str) -> None:
    with open_runs(path, FACTORIES) as runs, open_runs(path, {"story": build_story}) as others:
        id = runs.start("chat", "Hi", here=False).run()
        assert others.recover().run() == ()  # it does not know the factory
        assert runs.recover().run() == (id,)
        assert runs.result(id).run().output_text == "two"  # type: ignore[union-attr]


def test_another_process_continues_a_closed_run(path: str) -> None:
    asked: list[str] = []

    def build(words: list[Any]) -> Any:
        def model(request: Any) -> Any:
            asked.append("asked")
            return words

        return lambda input: rxllm.stream(Fake(model), input)

    async def main() -> None:
        seen: list[Event] = []
        async with open_runs(path, {"story": build(["Once", ("delay", 60)])}) as runs, open_runs(path, {}) as watching:
            id = await runs.start("story", "A story?")
            ended: list[Any] = []
            watching.watch(id).subscribe(seen.append, ended.append, lambda: ended.append(None))
            await until(lambda: any(isinstance(event, TextDelta) for event in seen))
            await runs.close()
            async with open_runs(path, {"story": build(WORDS)}) as others:
                await take_over(others, id)
                result = await others.result(id)
                await until(lambda: bool(ended))
                assert ended == [None]
        restarts = [event for event in seen if isinstance(event, StepRestarted)]
        assert restarts == [StepRestarted("recovered", 1)]
        assert folded(seen).chat_result == result
        assert asked == ["asked"] * 2

    in_loop(main)


def test_finished_steps_and_tools_stand(path: str) -> None:
    asked: list[str] = []

    def build(last: Any) -> Any:
        def model(request: Any) -> Any:
            asked.append(request.messages[-1].role)
            return last if request.messages[-1].role == "tool" else ToolCall("c0", "add", {"x": 1})

        return lambda input: rxllm.stream(Fake(model), input, tools=[add])

    async def main() -> None:
        async with open_runs(path, {"chat": build(["tw", ("delay", 60)])}) as runs:
            id = await runs.start("chat", "1 + 1?")
            seen: list[Event] = []
            runs.watch(id).subscribe(seen.append, lambda error: None)
            await until(lambda: any(isinstance(event, TextDelta) for event in seen))
        async with open_runs(path, {"chat": build("two")}) as others:
            await take_over(others, id)
            result = await others.result(id)
            assert isinstance(result, ChatResult)
            events = [event async for event in others.watch(id)]
        assert events[: len(seen)] == seen
        assert folded(events).chat_result == result
        assert [type(event) for event in events if isinstance(event, StepCompleted | StepRestarted)] == [
            StepCompleted,
            StepRestarted,
            StepCompleted,
        ]
        assert (RAN, asked) == ([1], ["user", "tool", "tool"])

    in_loop(main)


def test_an_end_that_is_not_committed_is_committed_later(path: str) -> None:
    async def main() -> None:
        store = open_store(path)
        async with open_runs(path, FACTORIES) as runs:
            id = await runs.start("story", "Hi", here=False)
            lease = await store.claim(id, "me", 60)
            assert lease is not None
            events = [rxllm.serializer.to_json(event).encode() async for event in build_story("Hi")]
            assert rxllm.serializer.from_json(events[-1], ChatCompleted)
            await store.append(lease, events)
            await store.release(lease)
            assert await runs.recover() == (id,)
            result = await runs.result(id)
            assert isinstance(result, ChatResult)
            assert len([event async for event in runs.watch(id)]) == len(events)
        await store.close()

    in_loop(main)


def test_the_producer_that_lost_its_lease_stops(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    async def main() -> None:
        async with open_runs(path, FACTORIES, lease=1.0) as runs:
            id = await runs.start("slow", "Hi")
            assert runs.produced == (id,)
            with closing(sqlite3.connect(path)) as db, db:  # as if it had slept until somebody else took the run
                db.execute("UPDATE runs SET epoch = epoch + 1, owner = 'somebody', leased_until = leased_until + 60")
            await until(lambda: not runs.produced)
            assert [run.status for run in await runs.list()] == ["running"]

    in_loop(main)


def test_expired_runs_are_gone(path: str) -> None:
    with open_runs(path, FACTORIES) as runs:
        id = runs.start("story", "Hi").run()
        runs.result(id).run()
        assert runs.expire(3600).run() == 0
        assert runs.expire(0).run() == 1
        with pytest.raises(RunError, match="unknown_run"):
            runs.watch(id).run()


def test_a_chat_that_waits_for_a_person_is_halted(path: str) -> None:
    @rxllm.tool(approval=True)
    def pay() -> str:
        return "paid"

    @rxllm.tool
    def ask() -> rxllm.values.Halt:
        return rxllm.ask_user("How much?")

    def build(input: Any) -> Any:
        engine = rxllm.Engine(Fake(lambda request: "Done." if request.messages[-1].role == "tool" else call(input)))
        if isinstance(input, dict):
            return rxllm.stream_resume(engine, input["resume"], approvals=input.get("approvals"), tools=[pay])
        return rxllm.stream(engine, input, tools=[pay, ask], max_turns=1)

    def call(input: Any) -> Any:
        return "Hi" if input == "Hi" else ToolCall("c0", input, {})

    with open_runs(path, {"chat": build}) as runs:
        ids = [runs.start("chat", input).run() for input in ("pay", "ask", "Hi")]
        halted, asking, _ = [runs.result(id).run() for id in ids]
        assert isinstance(halted, ChatResult)
        assert isinstance(asking, ChatResult)
        assert (halted.halted_reason, asking.pending_question) == ("approval", "How much?")
        assert [runs.get(id).run().status for id in ids] == ["halted", "halted", "completed"]
        assert {run.id for run in runs.list("halted").run()} == {*ids[:2]}
        assert list(runs.watch(ids[0]))[-1].result == halted  # type: ignore[union-attr]
        going = f"{ids[0]}-resumed"
        runs.start("chat", {"resume": halted, "approvals": {"c0": True}}, id=going).run()
        with pytest.raises(RunError) as caught:  # a second click
            runs.start("chat", {"resume": halted, "approvals": {"c0": True}}, id=going).run()
        assert caught.value.reason == "exists"
        assert runs.result(going).run().output_text == "Done."  # type: ignore[union-attr]
        assert runs.get(going).run().status == "completed"
        assert runs.expire(0).run() == 4


def test_the_end_of_a_halted_chat_that_is_committed_later_is_halted_too(path: str) -> None:
    @rxllm.tool(approval=True)
    def pay() -> str:
        return "paid"

    def build(input: Any) -> Any:
        return rxllm.stream(Fake(ToolCall("c0", "pay", {})), "Pay", tools=[pay])

    async def main() -> None:
        store = open_store(path)
        async with open_runs(path, {"pay": build}) as runs:
            id = await runs.start("pay", here=False)
            lease = await store.claim(id, "me", 60)
            assert lease is not None
            await store.append(lease, [rxllm.serializer.to_json(event).encode() async for event in build(None)])
            await store.release(lease)
            assert await runs.recover() == (id,)
            await runs.result(id)
            assert (await runs.get(id)).status == "halted"
        await store.close()

    in_loop(main)


# Recovering all the time


def test_recover_every_takes_new_runs_until_it_is_disposed(path: str) -> None:
    async def main() -> None:
        async with open_runs(path, FACTORIES) as runs, open_runs(path, FACTORIES) as others:
            taken: list[tuple[str, ...]] = []
            first = await others.start("story", "Hi", here=False)
            before = asyncio.all_tasks()
            subscription = runs.recover(every=1.0).subscribe(taken.append)
            await until(lambda: taken == [(first,)])
            for count in (2, 3):
                id = await others.start("story", "Hi", here=False)
                await until(lambda count=count: len(taken) == count)
                assert taken[-1] == (id,)
                await runs.result(id)
            subscription.dispose()
            await until(lambda: asyncio.all_tasks() <= before)
            id = await others.start("story", "Hi", here=False)
            assert (await runs.get(id)).status == "waiting"

    in_loop(main)


def test_recover_every_outlives_a_store_that_is_away_and_ends_with_the_runs(tmp_path: Path) -> None:
    faults = [RunError("store_unavailable")] * 2

    def away(method: str, arguments: Any) -> None:
        if method == "claimable" and faults:
            raise faults.pop()

    async def main() -> None:
        before = asyncio.all_tasks()
        ended: list[str] = []
        taken: list[tuple[str, ...]] = []
        async with open_runs(Interposed(open_store(tmp_path / "runs.db"), before=away), FACTORIES) as runs:
            runs.recover(every=1.0).subscribe(taken.append, None, lambda: ended.append("completed"))
            id = await runs.start("story", "Hi", here=False)
            await runs.result(id)
            assert taken == [(id,)]
        await until(lambda: ended == ["completed"])
        await until(lambda: asyncio.all_tasks() == before)

    in_loop(main)
    assert faults == []


def test_nothing_is_left_on_the_loop(path: str) -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        runs = open_runs(path, FACTORIES)
        id = await runs.start("slow", "Hi")
        seen: list[Event] = []
        watching = runs.watch(id).subscribe(seen.append)
        await until(lambda: bool(seen))
        watching.dispose()
        await runs.close()
        await until(lambda: asyncio.all_tasks() == before)
        assert repr(runs).endswith("0 produced here)")

    in_loop(main)


def test_a_step_result_comes_of_steps(path: str) -> None:
    with open_runs(path, {"steps": lambda input: rxllm.stream_step(Fake("Hi"), input)}) as runs:
        assert isinstance(runs.result(runs.start("steps", "Hi").run()).run(), StepResult)


@pytest.mark.judges
def test_a_slow_watcher_holds_nobody_back(path: str) -> None:
    async def main() -> None:
        factories: dict[str, Any] = {"long": lambda input: rxllm.stream_generate(Fake(["a"] * 5000), input)}
        async with open_runs(path, factories) as runs:
            id = await runs.start("long", "Hi")
            async with rxllm.to_async_iter(runs.watch(id), maxsize=8) as slow:
                first = await anext(slow)
                quick = [event async for event in runs.watch(id)]
                assert [first, *[event async for event in slow]] == quick
                assert quick[-1] == (await runs.watch(id))
                assert len(quick) > 5000

    in_loop(main)


def test_runs_is_exported() -> None:
    assert isinstance(Runs, type)
    assert ops.journaled


def test_a_number_that_the_log_has_not_reached_is_refused(path: str) -> None:
    with open_runs(path, FACTORIES) as runs:
        id = runs.start("story", "Hi").run()
        runs.result(id).run()
        with pytest.raises(rxllm.ValidationError, match="after is 1000, but run"):
            runs.watch(id, after=1000).run()


def test_chats_one_after_the_other_are_gone_on_with(path: str) -> None:
    """Wherever the first producer stops, also right behind the end of the first chat."""
    asked: list[str] = []

    def build(input: Any) -> Any:
        def model(request: Any) -> Any:
            asked.append("asked")
            return "Hello"

        return rxllm.stream(Fake(model), "One").concat(rxllm.stream(Fake(model), "Two"))

    async def main() -> None:
        store = open_store(path)
        async with open_runs(path, {"two": build}) as runs:
            whole = [event async for event in build(None)]
            for count in range(len(whole) + 1):
                id = await runs.start("two", here=False)
                lease = await store.claim(id, "me", 60)
                assert lease is not None
                await store.append(lease, [rxllm.serializer.to_json(event).encode() for event in whole[:count]])
                await store.release(lease)
                assert await runs.recover() == (id,)
                result = await runs.result(id)
                assert result == whole[-1].result
                events = [event async for event in runs.watch(id)]
                ends = [event for event in events if isinstance(event, StepCompleted | ChatCompleted)]
                assert ends == [event for event in whole if isinstance(event, StepCompleted | ChatCompleted)]
        await store.close()

    in_loop(main)


def test_a_run_that_is_claimed_while_its_runs_close_is_given_back(tmp_path: Path) -> None:
    """And those that would be claimed after it are not."""

    async def main() -> None:
        path, claims, gate = tmp_path / "runs.db", list[str](), asyncio.Event()

        async def after(method: str, arguments: tuple[Any, ...]) -> None:
            if method == "claim":
                claims.append(arguments[0])
                await gate.wait()

        runs = open_runs(Interposed(open_store(path), after=after), FACTORIES)
        for id in ("one", "two"):
            await runs.start("slow", id=id, here=False)
        recovering = runs.recover().subscribe()
        await until(lambda: bool(claims))
        closing = asyncio.ensure_future(runs.close())
        await turns()
        gate.set()
        await closing
        recovering.dispose()
        assert len(claims) == 1
        async with open_runs(path, FACTORIES) as others:
            assert {*await others.recover()} == {"one", "two"}

    in_loop(main)


def test_a_run_that_is_gone_before_it_is_recovered_keeps_no_others_from_that(tmp_path: Path) -> None:
    """Another process has ended it meanwhile, and expired it."""

    def before(method: str, arguments: tuple[Any, ...]) -> None:
        if method == "load" and arguments[0] == "gone":
            raise RunError("unknown_run", run_id="gone")

    async def main() -> None:
        async with open_runs(Interposed(open_store(tmp_path / "runs.db"), before=before), FACTORIES) as runs:
            for id in ("gone", "other"):
                await runs.start("story", id=id, here=False)
            assert await runs.recover() == ("other",)

    in_loop(main)
