"""The client of one request to an ASGI server: what it is sent, and whether it is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Message = Any  # a mapping, of which each framework has a type of its own
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]

HEARTBEAT = b":\n\n"
"""A comment, which readers of server-sent events leave out."""


class GoneError(Exception):
    """The client has left, or takes nothing any more."""


class Client:
    """What the server sends to. The head of the response is `status` and `headers`, and goes before its first bytes."""

    def __init__(self, send: Send, status: int, headers: Fields) -> None:
        self.status = status
        self.headers = headers
        self.begun = False
        self._send = send
        self._lock = asyncio.Lock()  # a server takes one message at a time
        self._now = asyncio.get_running_loop().time
        self._since = self._now()  # when the latest message was taken, or sent if it is not taken yet

    async def begin(self) -> None:
        """Send the head at once."""
        async with self._lock:
            if not self.begun:
                await self._begin()

    async def send(self, body: bytes, *, more: bool = True) -> None:
        async with self._lock:
            self._since = self._now()
            if not self.begun:
                await self._begin()
            await self._try({"type": "http.response.body", "body": body, "more_body": more})
            self._since = self._now()

    async def watch(self, heartbeat: float, patience: float) -> None:
        """Send a comment after each `heartbeat` of silence. Raise `GoneError` if nothing is taken for `patience`."""
        while True:
            is_behind = self._lock.locked()
            seconds = self._since + (patience if is_behind else heartbeat) - self._now()
            if seconds > 0:
                await asyncio.sleep(min(seconds, heartbeat, patience))  # it may fall behind, or catch up, meanwhile
            elif is_behind:
                raise GoneError
            else:
                try:
                    async with asyncio.timeout(patience):
                        await self.send(HEARTBEAT)
                except TimeoutError:
                    raise GoneError from None

    async def _begin(self) -> None:
        self.begun = True
        await self._try({"type": "http.response.start", "status": self.status, "headers": self.headers})

    async def _try(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:  # how a server may tell that the client has left
            raise GoneError from error


async def until_gone(receive: Receive, *work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do all of `work` at a time, until one is done. Raise `GoneError` once the client has left."""
    leaving = asyncio.ensure_future(_gone(receive))
    tasks = [leaving]
    try:
        await asyncio.sleep(0)  # it may have left already
        if not leaving.done():
            tasks = [*(asyncio.ensure_future(start()) for start in work), leaving]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise GoneError
