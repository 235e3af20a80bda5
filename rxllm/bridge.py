"""The asyncio bridge for any Observable of reactivex: no language model, no HTTP.

=====================================================  ============================================================
function                                               does
=====================================================  ============================================================
``run(source)``                                        wait for the end, and return the last item
``with to_iter(source) as items:``                     iterate on a thread without a loop
``async with to_async_iter(source) as items:``         iterate in a coroutine
``from_async_iter(factory)``                           make a cold Observable of an asynchronous iterator
=====================================================  ============================================================

>>> import reactivex
>>> with to_iter(reactivex.range(10**9), maxsize=8) as numbers:        # no more than 8 numbers wait
...     next(numbers), next(numbers)
(0, 1)

The same functions are in ``rxllm``.
"""

from rxllm.runtime import from_async_iter, run, to_async_iter, to_iter

__all__ = ["from_async_iter", "run", "to_async_iter", "to_iter"]
