"""An answer that is too long for a server to send, unless it is read."""

from __future__ import annotations

from rxllm import generate
from rxllm.testing.loopback import DONE, Loopback, Reply, chat_chunk, chat_finish
from tests.runtime.support import model

CHUNKS = 6000
CHUNK = chat_chunk("x" * 4000)
LONG = Reply([*[CHUNK] * CHUNKS, chat_finish(), DONE])


def assert_held_back(server: Loopback) -> None:
    """Check that a server of `LONG` keeps most of the first answer while a whole second one comes on the same loop."""
    generate(model(server), "Hi").run()
    first, second = server.connections
    assert second.bytes_sent > CHUNKS * len(CHUNK)
    assert first.bytes_sent < CHUNKS * len(CHUNK) * 0.6
