"""A bridge between asyncio and reactivex Observables.

=====================================================  ============================================================
function                                               purpose
=====================================================  ============================================================
``run(source)``                                        wait until the source completes, and return its last item
``with to_iter(source) as items:``                     iterate in synchronous code, on a thread with no event loop
``async with to_async_iter(source) as items:``         iterate in a coroutine
``from_async_iter(factory)``                           turn an asynchronous iterator into a cold Observable
=====================================================  ============================================================

>>> import reactivex
>>> with to_iter(reactivex.range(10**9), maxsize=8) as numbers:        # no more than 8 numbers wait
...     next(numbers), next(numbers)
(0, 1)

You can also import these functions from ``rxllm``.
"""

from rxllm.runtime import from_async_iter, run, to_async_iter, to_iter

__all__ = ["from_async_iter", "run", "to_async_iter", "to_iter"]
