"""Stores of sessions: memory, SQLite and Redis follow the rules, and the sessions of runs are the same documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import Fake, RunError, Session, Thread
from rxllm.durable import Runs, open_runs
from rxllm.session import MemorySessions, SessionStore, stream_reply
from rxllm.testing import SESSION_STORE_RULES, assert_session_store
from tests.durable.support import in_loop

Make = Callable[[], SessionStore]


@pytest.fixture(params=["memory", "sqlite", pytest.param("redis", marks=pytest.mark.judges)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """What opens the same store at each call."""
    if request.param == "memory":
        memory = MemorySessions()
        yield lambda: memory
        return
    place = str(tmp_path / "runs.db") if request.param == "sqlite" else request.getfixturevalue("redis_server").url
    opened: list[Runs] = []

    def make() -> SessionStore:
        opened.append(open_runs(place, {}))
        return opened[-1].sessions

    yield make
    for runs in opened:
        runs.close().run()


@pytest.mark.sockets
@pytest.mark.parametrize("rule", SESSION_STORE_RULES)
def test_every_store_follows_the_rules(make: Make, rule: str) -> None:
    assert_session_store(make, without=[name for name in SESSION_STORE_RULES if name != rule])


def build_answer(text: str, session: Session) -> Any:
    return stream_reply(Fake(["Hel", ("delay", 60), "lo"]), session, text)


def test_the_sessions_of_runs_are_the_same_documents(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_runs(tmp_path / "runs.db", {"answer": build_answer}) as runs:
            store = runs.sessions
            saved = await store.save(Session(id="ada", thread=Thread() + "Hi" + rxllm.assistant("Hello")))
            assert await runs.session("ada") == saved
            run = await runs.start("answer", "A story!", session=saved)
            loaded = await store.load("ada")
            assert loaded.run == run
            with pytest.raises(RunError, match="has an open turn"):  # the run's own save comes first
                await store.save(loaded.session, loaded.version)
            with pytest.raises(RunError, match="has an open turn"):
                await store.delete("ada")
            await runs.cancel(run)
            with pytest.raises(RunError, match="cancelled"):
                await runs.result(run)
            loaded = await store.load("ada")
            assert loaded.run is None
            await store.delete("ada")
            assert (await runs.session("ada")).session == Session(id="ada")

    in_loop(main)


def test_a_factory_that_is_added_later_produces_and_recovers_runs(tmp_path: Path) -> None:
    def build_greeting(name: str) -> Any:
        return rxllm.stream(Fake(f"Hello {name}!"), "Greet them.")

    async def main() -> None:
        async with open_runs(tmp_path / "runs.db", {"answer": build_answer}) as runs:
            with pytest.raises(RunError, match="no factory 'greet'"):
                runs.start("greet", "Ada")
            runs.add_factory("greet", build_greeting)
            assert (await runs.result(await runs.start("greet", "Ada"))).output_text == "Hello Ada!"
            left = await runs.start("greet", "Bob", here=False)
            assert await runs.recover() == (left,)
            for arguments in (("greet", build_greeting), (3, build_greeting), ("other", "no function")):
                with pytest.raises(rxllm.ValidationError):
                    runs.add_factory(*arguments)  # type: ignore[arg-type]

    in_loop(main)
