"""Threads that nothing waits for."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from rxllm.runtime import daemon_threads, in_thread, threads
from rxllm.runtime.threads import DaemonThreads
from tests.runtime.support import finished, script
from tests.waiting import PATIENCE, wait_until

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
def test_an_error_there_is_raised_here(error: BaseException) -> None:
    def fail() -> None:
        raise error

    assert daemon_threads().submit(fail).exception(PATIENCE) is error


def test_as_many_as_are_needed_run_at_once() -> None:
    together = threading.Barrier(20)
    futures = [daemon_threads().submit(together.wait, PATIENCE) for _ in range(20)]
    assert sorted(future.result(PATIENCE) for future in futures) == list(range(20))


def test_after_a_burst_most_threads_end() -> None:
    pool, together = DaemonThreads(), threading.Barrier(60)
    before = threading.active_count()
    futures = [pool.submit(together.wait, PATIENCE) for _ in range(60)]
    assert len({future.result(PATIENCE) for future in futures}) == 60
    wait_until(lambda: pool.running == 0 and threading.active_count() <= before + threads.IDLE_KEPT)
    assert [pool.submit(int, "7").result(PATIENCE) for _ in range(100)] == [7] * 100


@pytest.mark.judges
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
