"""Several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.waiting import PATIENCE


def together(*each: Callable[[], object]) -> None:
    """Call all, each in a thread of its own, at the same time; raises what one of them has raised."""
    ready, faults = threading.Barrier(len(each), timeout=PATIENCE), list[BaseException]()

    def run(fn: Callable[[], object]) -> None:
        try:
            ready.wait()
            fn()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(fn,), daemon=True) for fn in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if faults:
        raise faults[0]
    assert not any(thread.is_alive() for thread in threads)
