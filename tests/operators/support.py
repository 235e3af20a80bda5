"""An answer that is too long for a server to send, unless it is read."""

from __future__ import annotations

from rxllm.testing.loopback import DONE, Loopback, Reply, chat_chunk, chat_finish

TEXT = "A text. " * 500
CHUNKS = 6000
LENGTH = CHUNKS * len(TEXT)
LONG = Reply([*[chat_chunk(TEXT)] * CHUNKS, chat_finish(), DONE])


def assert_held_back(server: Loopback) -> None:
    """Check that most of the first answer is not sent yet, though a whole second one has come on the same loop."""
    first, second = server.connections
    assert second.bytes_sent > LENGTH
    assert first.bytes_sent < LENGTH * 0.6
