"""What a run has added to its thread when it halts for the client's tools, until the client answers.

The client gets its own calls only, and sends only those back. The model's message had more: thinking whose signature
its provider wants to see again, and calls of the engine's own tools, which have run and must not run twice. So the
messages of the run are kept here, and take the place of the client's copy in the next request.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable

from rxllm import ChatResult, Message, Thread, ToolCall, serializer

MOST = 512
"""How many runs are kept. A client whose run has gone, or another process, goes on with what the client sends."""


class Memory:
    """The messages of runs, by what was asked and which calls the client was to answer.

    Call ids alone would not do: some providers count them from 0. Who sends the same conversation, with the same calls,
    to the same model has the same right to its messages.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, tuple[Message, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def restore(self, model: str, thread: Thread) -> Thread:
        """Return `thread`, as the client sent it, with the messages of the runs that are kept."""
        messages: list[Message] = []
        digest = hashlib.sha256(model.encode())
        for message in thread:
            kept = self._kept.get(_key(digest.digest(), message.tool_calls)) if message.tool_calls else None
            messages += kept or (message,)
            digest.update(serializer.to_json(message).encode())
        return Thread(messages)

    def keep(self, model: str, asked_for: Thread, restored: Thread, result: ChatResult) -> None:
        """Keep what the run has added to `restored`; the client knows it as the answer to `asked_for`."""
        if result.halted_reason != "manual_tool_calls":
            return
        digest = hashlib.sha256(model.encode())
        for message in asked_for:
            digest.update(serializer.to_json(message).encode())
        key = _key(digest.digest(), result.pending_tool_calls)
        self._kept[key] = result.thread.messages[len(restored) :]
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)


def _key(digest: bytes, calls: Iterable[ToolCall]) -> bytes:
    texts = sorted(json.dumps([call.id, call.name, call.arguments], sort_keys=True) for call in calls)
    return hashlib.sha256(digest + json.dumps(texts).encode()).digest()
