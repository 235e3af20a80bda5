"""What a stream notes while it runs, so that it can be run again without doing anything twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec
from reactivex import Observable

from rxllm.events import Event
from rxllm.values import ToolCall


class ToolRecord(msgspec.Struct, frozen=True):
    """What a journal has of a tool call: `call` as it began, with its arguments then, and `events`, its outcome.

    Without `events` it was interrupted; without `call` it was denied before it began.
    """

    call: ToolCall | None = None
    events: Sequence[Event] | None = None


class Journal(Protocol):
    """What an earlier run of the same stream has noted, and what this one notes; see ``operators.journaled``.

    `path` has the ids of the tool calls around a request or a tool call, the outermost first. A key with its path is
    equal whenever the same call is made again. Several calls may have one key: then the first of them gets what was
    noted first. Methods are called on any thread and on any event loop. One that has those of ``RecallingJournal`` too
    keeps the corrections of ``steer``.
    """

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        """Return what the model answered if it is noted, else `events`, noting what they end with.

        Called at each subscription; the n-th one of a key is the n-th in every run. `key` names the request, as
        ``rxllm.values.request_key`` does, without the descriptions of its tools.
        """
        ...

    def tool(self, path: Sequence[str], key: str) -> ToolRecord | None:
        """Return what an earlier run has noted of this tool call."""
        ...

    async def begin(self, path: Sequence[str], key: str, call: ToolCall) -> None:
        """Note that the tool runs now. It runs when this has returned; an error of this ends the stream."""
        ...

    async def finish(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        """Note the outcome. It is emitted when this has returned; an error of this ends the stream."""
        ...


@runtime_checkable
class RecallingJournal(Journal, Protocol):
    """A `Journal` that keeps events too, by which a chat that is run again is steered as before; see ``steer``."""

    def has_response(self, path: Sequence[str], key: str) -> bool:
        """Return whether the next call of `response` with this key is answered by what is noted."""
        ...

    def recall(self, path: Sequence[str], key: str) -> Sequence[Event] | None:
        """Return the events that an earlier run has kept under this key, None if it has kept none."""
        ...

    def keep(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        """Keep events. What is noted later is not there without them."""
        ...
