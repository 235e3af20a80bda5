"""What a chat with a tool goes through in simulated worlds: users keep the seeds of failures, and run them again."""

from __future__ import annotations

import re

import rxllm
from rxllm.testing import World, simulate
from rxllm.testing.loopback import Reply, Request
from tests.benchmarks import wires
from tests.golden.calls import note

SEEDS = range(12)
OF_HTTPX = re.compile(r"\bruns$|receives \d+ bytes|  anyio")
"""What depends on the version of httpx: its tasks, and the length of its requests."""


def answer(request: Request) -> Reply:
    """Call the tool, and answer when it has run."""
    kind = "text" if b'"role":"tool"' in request.body else "tool"
    return Reply(wires.answer("chat", kind, 3), before=0.5)


async def app(world: World) -> str:
    engine = rxllm.OpenAIChat(base_url=world.serve(answer).url, api_key="k")
    result = await rxllm.chat(engine, "Hi", model="m", tools=[note], timeout=30)
    return result.output_text


def simulations() -> str:
    """Return the outcome and the trace of each seed."""
    lines: list[str] = []
    for seed in SEEDS:
        run = simulate(app, seed)
        lines.append(f"seed {seed}: {run.value!r} {run.error!r} {run.duration:.3f} s")
        lines += [f"  {moment}" for moment in run.trace if not OF_HTTPX.search(str(moment))]
    return "\n".join(lines) + "\n"


WRITERS = {"simulations.txt": simulations}
