"""Places that httpcore's connection pools have lost: connections that no request uses, and that none can ever use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


class PoolWatch:
    """Notes the pools of a run, and counts what each has lost: at every request, and at the end if it is open still.

    What a pool has lost when it is closed is nobody's loss.
    """

    def __init__(self) -> None:
        self.lost = 0
        self._pools: list[Any] = []

    def opening(self, init: Callable[..., None]) -> Callable[..., None]:
        """Return what to call in place of a pool's ``__init__``."""

        def watched(pool: Any, *args: Any, **options: Any) -> None:
            init(pool, *args, **options)
            self._pools.append(pool)

        return watched

    def requesting(self, handle: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return what to call in place of its ``handle_async_request``."""

        async def watched(pool: Any, request: Any) -> Any:
            self._count(pool)
            return await handle(pool, request)

        return watched

    def closing(self, aclose: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Return what to call in place of its ``aclose``."""

        async def watched(pool: Any) -> None:
            self._pools.remove(pool)
            await aclose(pool)

        return watched

    def look(self) -> None:
        """Count what the pools that are open have lost."""
        for pool in self._pools:
            self._count(pool)

    def _count(self, pool: Any) -> None:
        used = [connection for connection in pool.connections if not (connection.is_idle() or connection.is_closed())]
        self.lost = max(self.lost, len(used) - len(pool._requests))
