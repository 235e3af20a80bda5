"""A provider over a loopback, a tenth of whose answers fail. It knows how often each question was asked."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rxllm.testing.loopback import DONE, Cut, Loopback, Pause, Reply, Request, chat_chunk, chat_finish

PROMPT, ANSWER = 1, 6
"""The tokens that an answer states."""


class Provider:
    """A script for `Loopback`. The question is a number; the answer begins with it, and is held while `holds` says."""

    def __init__(self, holds: Callable[[int], bool] = lambda number: False) -> None:
        self.asked: Counter[int] = Counter()
        self.most = 0
        self._holds = holds
        self._open = 0

    @property
    def begun(self) -> int:
        """The number of requests."""
        return sum(self.asked.values())

    def __call__(self, request: Request) -> Reply:
        number = int(request.json["messages"][-1]["content"])
        self.asked[number] += 1
        status = refusal(number)
        if status and self.asked[number] == 1:
            return Reply.of_json({"error": {"message": "not now"}}, status)
        return Reply(self._answer(number))

    def _answer(self, number: int) -> Iterator[bytes | Pause | Cut]:
        self._open += 1
        self.most = max(self.most, self._open)
        try:
            yield chat_chunk(f"{number} ")
            while self._holds(number):
                yield Pause(0.001)
        finally:
            self._open -= 1  # before the end, after which the client may ask again
        if is_cut(number):
            yield Cut.FIN
        yield chat_chunk("is a number")
        yield chat_finish(usage={"prompt_tokens": PROMPT, "completion_tokens": ANSWER})
        yield DONE


def refusal(number: int) -> int | None:
    """Return the status with which the first attempt is refused."""
    return {3: 429, 13: 500}.get(number % 30)


def is_cut(number: int) -> bool:
    """Whether the answer breaks off in the middle, whenever it is asked for."""
    return number % 30 == 23


def pids(client: Any) -> list[int]:
    """Return the processes of the workers that a scheduler on this machine knows, and not of those that start."""
    known = client.nthreads()
    return [nanny.pid for nanny in client.cluster.workers.values() if nanny.pid and nanny.worker_address in known]


def main() -> None:
    """Print the address; once standard input ends, print how often each number was asked, and the most at a time."""
    provider = Provider()
    with Loopback(provider) as server:
        print(server.url, flush=True)
        sys.stdin.read()
    print(json.dumps({"numbers": dict(provider.asked), "most": provider.most}))


if __name__ == "__main__":
    main()
