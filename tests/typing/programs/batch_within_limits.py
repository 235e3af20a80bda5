"""A batch with a journal, a limiter of its own, a shared budget and a tracer; the second run asks only what is new.

Prints::

    A, B
    12 tokens of 10000
    2 calls
    A, B, C
    2 of 3 from the journal
"""

import tempfile
from pathlib import Path
from typing import assert_type

import rxllm
from rxllm import Budget, Engine, Fake, Request, Response, Usage
from rxllm import operators as ops
from rxllm.runtime import Limiter
from rxllm.telemetry import CallFinished, Telemetry, Tracer
from rxllm.values import Progress, Spending


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    async def acquire(self, tokens: int) -> int:
        self.calls += 1
        return tokens

    def settle(self, permit: int, tokens: int) -> None: ...

    def hold_back(self, seconds: float) -> None: ...


class Lengths(Tracer):
    def __init__(self) -> None:
        self.chunks = 0

    def __call__(self, value: Telemetry) -> None:
        if isinstance(value, CallFinished):
            self.chunks += len(value.details.chunks)

    def request_headers(self, call_id: str) -> dict[str, str]:
        return {"x-call": call_id}


def shout(request: Request) -> list[str | Usage]:
    return [request.messages[-1].text.upper(), Usage(4, 2)]


counter = Counter()
limiter: Limiter = counter
shared = Budget(tokens=10_000)
limits = [ops.rate_limited(limiter), ops.rate_limited(requests_per_minute=500, tokens_per_minute=100_000)]
engine = Engine(Fake(shout), operators=[*limits, ops.budget(shared)], observers=[Lengths()])
seen: list[Progress] = []

with tempfile.TemporaryDirectory() as folder:
    journal = Path(folder) / "out.jsonl"
    first = rxllm.generate_many(engine, {"x": "a", "y": "b"}, journal=journal, on_progress=seen.append)
    print(", ".join(response.output_text for response in assert_type(first.run(), list[Response])))
    spent = assert_type(shared.spent, Spending)
    print(spent.tokens, "tokens of", shared.tokens)
    print(counter.calls, "calls")
    more = rxllm.generate_many(engine, {"x": "a", "y": "b", "z": "c"}, journal=journal, on_progress=seen.append)
    print(", ".join(response.output_text for response in more))
print(f"{seen[-1].journaled} of {seen[-1].total} from the journal")
