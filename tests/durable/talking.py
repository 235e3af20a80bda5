"""A process that begins a turn of the session "ada", to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from rxllm import Fake, RunError, Session, TextDelta
from rxllm.durable import Store, open_runs
from rxllm.durable.testing import Interposed
from rxllm.session import stream_reply

LEASE = 0.5


def build_answer(text: str, session: Session) -> Any:
    """Answer with the text backwards, which takes for ever after the text "stall"."""
    answer = [text[::-1], ("delay", 60), " never"] if text == "stall" else text[::-1]
    return stream_reply(Fake(answer), session, text)


FACTORIES = {"answer": build_answer}


def dies(point: str) -> Any:
    def die(method: str, arguments: Any) -> None:
        if point.endswith(f":{method}"):
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def talk(pipe: Connection, make_store: Callable[[], Store], point: str, text: str = "stall") -> None:
    """Begin a turn, and say how it ended.

    `point` is ``text``, where it says "ready" once a part of the answer is committed; ``reply``, where it says "ready"
    and begins when it is told to; or ``before:create`` and the like, a call of the store at which it dies.
    """

    async def main() -> None:
        store = make_store()
        if point.startswith("before:"):
            store = Interposed(store, before=dies(point))
        if point.startswith("after:"):
            store = Interposed(store, after=dies(point))
        async with open_runs(store, FACTORIES, flush_after=0.01, lease=LEASE) as runs:
            saved = await runs.session("ada")
            if point == "reply":
                pipe.send("ready")
                pipe.recv()
            try:
                id = await runs.start("answer", text, session=saved)
            except RunError as error:
                pipe.send(error.reason)
                return
            async for event in runs.watch(id):
                if point == "text" and isinstance(event, TextDelta):
                    pipe.send("ready")
            pipe.send("replied")

    asyncio.run(main())
