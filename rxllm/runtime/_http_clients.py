"""HTTP clients: which one a call uses, and who closes it.

A connection belongs to the event loop that opened it, so an adapter has clients for each loop.

=========================  ===============================================  ============================================
``client=``                clients                                          closed by
=========================  ===============================================  ============================================
None                       rxllm's own: some per loop, see ``_http_pools``  their loop's end, the adapter's, `aclose`
a function                 what it makes: one per loop                      the same
a client                   that one, on the loop of its first call only     its owner
=========================  ===============================================  ============================================
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from rxllm.runtime._http_client_settings import prepare
from rxllm.runtime._http_pools import Pools
from rxllm.runtime._http_transport_choice import Transport, chosen_transport
from rxllm.runtime._portal import running_loop
from rxllm.values import EngineError

if TYPE_CHECKING:
    import httpx


class Clients:
    """The clients of one adapter. `client` is what the user has passed: a client, a function that makes one, or None.

    A client that the user has passed belongs to the loop of its first call: ``EngineError("wrong_loop")`` is raised on
    another. Clients of a loop that was closed without ``shutdown_asyncgens`` are closed by the first call on another.
    """

    def __init__(self, client: Any = None) -> None:
        self._client: httpx.AsyncClient | None = None if callable(client) else client
        # None for rxllm's own clients: their transport is the one that is chosen when a loop has its first call.
        self._transport = Transport(cast("Callable[[], httpx.AsyncClient]", client)) if callable(client) else None
        self._by_loop: dict[asyncio.AbstractEventLoop, Pools] = {}
        self._owner: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._builder: httpx.AsyncClient | None = None

    async def get(self) -> httpx.AsyncClient:
        """Return the client for a call on the running loop."""
        loop = asyncio.get_running_loop()
        if self._client is not None:
            self._claim(loop)
            return self._client
        if loop not in self._by_loop:
            await self._close_dead()
            await prepare((self._transport or chosen_transport()).modules)
        if loop not in self._by_loop:  # checked again: calls that begin together wait together
            transport = self._transport or chosen_transport()
            pools = self._by_loop[loop] = Pools(transport.make, transport.calls, self._by_loop)
            await pools.open(self)
        return self._by_loop[loop].pick()

    def any(self) -> httpx.AsyncClient:
        """Return a client to build requests with; nothing is sent with it unless it is the loop's own."""
        loop = running_loop()
        if self._client is not None:
            return self._client
        if loop is not None and loop in self._by_loop:
            return self._by_loop[loop].first
        if self._builder is None:
            self._builder = (self._transport or chosen_transport()).make()
        return self._builder

    async def aclose(self) -> None:
        """Close the running loop's clients. The next call makes a new one."""
        pools = self._by_loop.get(asyncio.get_running_loop())
        if pools is not None:
            await pools.aclose()

    async def _close_dead(self) -> None:
        for loop in [loop for loop in list(self._by_loop) if loop.is_closed()]:
            if (pools := self._by_loop.pop(loop, None)) is not None:
                await pools.close_dead()

    def _claim(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._owner is None:
            self._owner = weakref.ref(loop)
        elif self._owner() is not loop:  # a loop that is gone has left its connections in the client
            message = "this client belongs to another event loop; pass a factory instead, client=lambda: ..."
            raise EngineError("wrong_loop", message)
