"""n. Many requests on the workers of Dask, beside one process: a tenth of the answers fail, and workers are killed."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import rxllm
from rxllm import Engine, OpenAIChat, Response, RetryPolicy
from rxllm import operators as ops
from tests.benchmarks.report import Effort, Table, progress
from tests.cluster.provider import pids, refusal

WORKERS, AT_ONCE, LIMIT = 2, 64, 48
COLUMNS = ["where", "requests", "answered", "s", "ratio", "asked again after a death", "most at once"]

Ask = Callable[[Engine, list[str]], Iterable[Response[Any]]]


def measure(effort: Effort) -> list[Table]:
    """Seconds for so many requests, under one limit of calls at a time, as the provider saw them."""
    table = Table("n", f"{effort.requests:,} requests, {LIMIT} at once, on {WORKERS} workers", COLUMNS)
    try:
        from distributed import Client, LocalCluster
    except ModuleNotFoundError as error:
        table.skip("Dask", error)
        return [table]
    quiet: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    first = _row(table, "one process", effort.requests, lambda *what: rxllm.generate_many(*what, concurrency=AT_ONCE))
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, **quiet) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):

        def on_workers(engine: Engine, questions: list[str]) -> Iterable[Response[Any]]:
            share = AT_ONCE // WORKERS
            return rxllm.cluster.generate_many(engine, questions, client=client, concurrency=share)

        def killing(engine: Engine, questions: list[str]) -> Iterator[Response[Any]]:
            for number, response in enumerate(on_workers(engine, questions)):
                if number % (len(questions) // 4) == len(questions) // 8:
                    for worker in pids(client)[:1]:  # there is none while Dask restarts both
                        with suppress(ProcessLookupError):  # Dask's own restarts end one too
                            os.kill(worker, signal.SIGKILL)
                yield response

        _row(table, "workers of Dask", effort.requests, on_workers, first)
        _row(table, "workers of Dask, some killed", effort.requests, killing, first)
    return [table]


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out the warnings of rxllm, which are a line for each refusal."""
    logger = logging.getLogger("rxllm")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _row(table: Table, name: str, count: int, ask: Ask, first: float | None = None) -> float:
    progress(f"n. {name}")
    with _quiet(), _provider() as (url, seen):
        retry = RetryPolicy(base_delay=0.01, jitter=0.01)
        limited = [ops.rate_limited(concurrent=LIMIT)]
        engine = Engine(OpenAIChat(base_url=url), model="m", retry=retry, operators=limited)
        begun = time.perf_counter()
        answered = sum(
            response.output_text.startswith(f"{n} ") for n, response in enumerate(ask(engine, _numbers(count)))
        )
        seconds = time.perf_counter() - begun
    usual = sum(2 if refusal(number) else 1 for number in range(count))
    again = sum(seen["numbers"].values()) - usual
    table.rows.append([name, count, answered, seconds, seconds / (first or seconds), again, seen["most"]])
    return seconds


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@contextmanager
def _provider() -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of a provider in a process of its own; afterwards what it has seen."""
    command = [sys.executable, "-m", "tests.cluster.provider"]
    seen: dict[str, Any] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip(), seen
        process.stdin.close()
        seen.update(json.loads(process.stdout.read()))
