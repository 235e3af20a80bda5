"""Threads that nothing waits for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest

from rxllm.runtime import daemon_threads, in_thread, threads
from rxllm.runtime.threads import DaemonThreads
from tests.runtime.support import finished, script

name: contextvars.ContextVar[str] = contextvars.ContextVar("name")


def test_it_runs_elsewhere_in_the_callers_context() -> None:
    async def main() -> None:
        name.set("mine")
        assert await in_thread(lambda: (name.get(), threading.current_thread() is threading.main_thread())) == (
            "mine",
            False,
        )

    asyncio.run(main())


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3)])
def test_what_it_raises_is_raised(error: BaseException) -> None:
    def fail() -> None:
        raise error

    assert daemon_threads().submit(fail).exception(5) is error


def test_as_many_as_are_needed_run_at_once() -> None:
    together = threading.Barrier(20)
    futures = [daemon_threads().submit(together.wait, 5) for _ in range(20)]
    assert sorted(future.result(5) for future in futures) == list(range(20))


def test_after_a_burst_most_threads_end() -> None:
    pool, together = DaemonThreads(), threading.Barrier(60)
    before = threading.active_count()
    futures = [pool.submit(together.wait, 5) for _ in range(60)]
    assert len({future.result(5) for future in futures}) == 60
    end = time.monotonic() + 5
    while pool.running or threading.active_count() > before + threads.IDLE_KEPT:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert [pool.submit(int, "7").result(5) for _ in range(100)] == [7] * 100


def test_a_job_that_hangs_does_not_hold_up_the_end() -> None:
    code = """
    import threading
    from rxllm.runtime import daemon_threads
    begun = threading.Event()
    daemon_threads().submit(lambda: (begun.set(), threading.Event().wait()))
    begun.wait()
    print("bye")
    """
    assert finished(script(code)) == (0, "bye\n", "")
