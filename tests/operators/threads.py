"""Several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(*each: Callable[[], object]) -> None:
    """Call all, each in a thread of its own, at the same time; raises what one of them has raised."""
    ready, faults = threading.Barrier(len(each)), list[BaseException]()

    def run(fn: Callable[[], object]) -> None:
        ready.wait()
        try:
            fn()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(fn,)) for fn in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
