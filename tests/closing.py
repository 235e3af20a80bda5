"""Closing: a call that is left has closed its connection before a next call is answered.

The order is the rule, and no time is measured. The next call runs on the same event loop, so it shares every delay of
the machine with the close. Its adapter has a connection pool of its own, which does nothing to the first connection.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable
from typing import Any

from rxllm import Engine, OpenAIChat, Response, Stream, generate
from rxllm.testing.loopback import STALL, Connection, Loopback, Reply, Request, Script, chat, chat_chunk

STALLED = Reply([chat_chunk("a"), chat_chunk("b"), chat_chunk("c"), STALL])
SILENT = Reply(before=STALL)

_NEXT = "the next call"


def also_next(script: Script) -> Script:
    """Return a script that answers the calls of `next_call`, and everything else as `script` does."""
    counter = itertools.count()

    def answer(request: Request) -> Reply:
        if _NEXT.encode() in request.body:
            return Reply(chat("Hi"))
        if callable(script):
            return script(request)
        return script if isinstance(script, Reply) else script[min(next(counter), len(script) - 1)]

    return answer


def next_call(server: Loopback, **options: Any) -> Stream[Response]:
    """Return a call to a server of `also_next`: when it is answered, what was left before must be closed."""
    return generate(Engine(OpenAIChat(base_url=server.url, **options), model="m", retry=False), _NEXT)


def assert_closed(connection: Connection) -> None:
    """Check that the client has closed the connection by now."""
    assert connection.closed_by == "client", f"the connection is still open, or closed by {connection.closed_by!r}"


def assert_closes(leave: Callable[[Loopback], Any], reply: Script = STALLED) -> None:
    """Check that `leave` closes the first connection that it opens.

    ``leave(server)`` makes a call and leaves it. As a coroutine function it runs on an event loop of its own, on which
    the next call is made. As a plain function it uses the portal, and so does the next call.
    """
    with Loopback(also_next(reply)) as server:
        if inspect.iscoroutinefunction(leave):

            async def main() -> None:
                await leave(server)
                await next_call(server)
                assert_closed(server.connections[0])  # before the loop's end, which would close everything

            asyncio.run(main())
        else:
            leave(server)
            next_call(server).run()
            assert_closed(server.connections[0])
