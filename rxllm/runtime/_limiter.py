"""What counts as a limiter: it says when a call may begin."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Limiter(Protocol):
    """Limits calls that ``ops.rate_limited(limiter)`` cannot see all of: of several processes or machines, say.

    A call acquires a permit, runs, and settles; the same permit is settled once, however the call ends.

    >>> class AtMost:
    ...     def __init__(self, calls):
    ...         self.places = asyncio.Semaphore(calls)
    ...     async def acquire(self, tokens):
    ...         await self.places.acquire()
    ...     def settle(self, permit, tokens):
    ...         self.places.release()
    ...     def hold_back(self, seconds):
    ...         pass
    >>> import asyncio
    >>> from rxllm import Engine, Fake, generate, operators as ops
    >>> generate(Engine(Fake("Hi"), operators=[ops.rate_limited(AtMost(2))]), "Hello").run().output_text
    'Hi'

    All three are called on the event loops and threads of the calls; neither `settle` nor `hold_back` may block.
    """

    def acquire(self, tokens: int, /) -> Awaitable[Any]:
        """Wait until a call that may use `tokens`, its messages and answer together, may begin; return its permit.

        What it raises is the error of the call. It is cancelled when the call is disposed meanwhile.
        """
        ...

    def settle(self, permit: Any, tokens: int, /) -> None:
        """End the call with this permit. It has used `tokens`, as its provider states or as they are estimated."""
        ...

    def hold_back(self, seconds: float, /) -> None:
        """Begin no call for so long: a call has failed because of its rate, or its provider asks to wait."""
        ...
