"""A real HTTP/1.1 server on a socket, in a thread of its own, that follows a script and notes who closed when.

::

    with Loopback(Reply([chat_chunk("Hi"), Pause(0.01), chat_finish(), DONE])) as server:
        httpx.post(server.url + "/chat/completions", json={})
        server.requests[0].json

The script is a `Reply` for every request, a list of them (the last one again and again), or a function of the
`Request`. A body is bytes, sent with their length, or any iterable, sent chunked: bytes are one chunk, a `Pause` is
waited for, and a `Cut` ends it. A wrong script or body raises ``TypeError`` where it is written; errors while the
server runs are raised when the ``with`` ends, in place of an exception from inside. Request bodies must have a length.
"""

from __future__ import annotations

from rxllm.testing.loopback._script import (
    DONE,
    SSE_HEADERS,
    STALL,
    Cut,
    Pause,
    Reply,
    Request,
    Script,
    chat,
    chat_chunk,
    chat_event,
    chat_finish,
    endless,
)
from rxllm.testing.loopback._server import Connection, Loopback

__all__ = [
    "DONE",
    "SSE_HEADERS",
    "STALL",
    "Connection",
    "Cut",
    "Loopback",
    "Pause",
    "Reply",
    "Request",
    "Script",
    "chat",
    "chat_chunk",
    "chat_event",
    "chat_finish",
    "endless",
]


def __dir__() -> list[str]:
    return __all__
