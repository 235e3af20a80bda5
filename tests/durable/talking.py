"""A program that begins a turn of the session "ada", to be killed: ``python -m tests.durable.talking STORE POINT``.

`POINT` is ``text``: it says "ready" once a part of the answer is committed, and waits; ``reply TEXT``: it begins a turn
when a line comes in, and says how that ended; or ``before:create`` and the like, a call of the store at which it dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from rxllm import Fake, RunError, Session, TextDelta
from rxllm.durable import open_runs, open_store
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


async def main(place: str, point: str, text: str = "stall") -> None:
    store = open_store(place)
    if point.startswith("before:"):
        store = Interposed(store, before=dies(point))
    if point.startswith("after:"):
        store = Interposed(store, after=dies(point))
    async with open_runs(store, FACTORIES, flush_after=0.01, lease=LEASE) as runs:
        saved = await runs.session("ada")
        if point == "reply":
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        try:
            id = await runs.start("answer", text, session=saved)
        except RunError as error:
            print(error.reason, flush=True)
            return
        async for event in runs.watch(id):
            if point == "text" and isinstance(event, TextDelta):
                print("ready", flush=True)
        print("replied", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
