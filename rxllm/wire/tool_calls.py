"""Assemble tool calls from deltas in OpenAI's format.

Providers may omit, repeat or reuse the index, id and name of a delta. This table shows which call a delta belongs to:

===================  ===================  =====================================================================
delta's index        delta's id           the delta belongs to
===================  ===================  =====================================================================
known                missing or the same  the call with that index
known                new                  a new call, if the delta has a name or the old call's arguments are
                                          complete; otherwise the call with that index, because some servers
                                          invent an id for every delta
new                  known                the call with that id, or a new call if the delta has a name
new                  missing, or new      a new call
missing or negative  known                the call with that id
missing or negative  new                  a new call
missing or negative  missing              the latest call, unless the delta's name starts a new call
===================  ===================  =====================================================================

* A call starts once its id and name are known and all earlier calls have started.
* Only the first name counts. Many providers repeat the name, but none splits it across deltas.
* If a delta repeats all the arguments of a call, it adds nothing.
* If an API sends one call after another (`in_turn`), a call whose arguments are a whole object is complete when another
  call or some text begins. A delta that adds to it all the same is an error.
* If the id of a call is missing or already used, the call is given the id ``call_<k>``. k is the position of the call
  among all the calls in the thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rxllm.events import NOTHING, Event, ToolCallCompleted, ToolCallDelta, ToolCallStarted
from rxllm.values import Message, StreamError
from rxllm.values.json_text import json_text, read_arguments
from rxllm.wire.framing import JSONArrayDecoder


class _Call:
    __slots__ = (
        "found",
        "id",
        "metadata",
        "name",
        "objects",
        "parses",
        "pieces",
        "position",
        "searched",
        "state",
        "wire_id",
    )

    def __init__(self, position: int) -> None:
        self.position = position
        self.wire_id = ""
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.metadata: dict[str, Any] = {}
        self.state = "waiting"  # then "started", then "completed"
        self.objects: JSONArrayDecoder | None = None
        self.found = self.searched = 0  # how many objects were found, and how many pieces were searched
        self.parses = False  # whether the searched pieces are an object

    def is_whole(self) -> bool:
        if not self.pieces or not self.pieces[-1].endswith("}"):
            return False
        # This runs often, because some servers repeat the name in every piece. So search each piece only once.
        if self.searched == len(self.pieces):
            return self.parses
        if self.objects is None:
            self.objects = JSONArrayDecoder(max_frame=sys.maxsize)
            self.objects.feed(b"[")
        for piece in self.pieces[self.searched :]:
            self.found += len(self.objects.feed(piece.encode(errors="replace")))
        self.searched = len(self.pieces)
        is_one = self.found == 1 and self.objects.is_between
        self.parses = is_one and read_arguments("".join(self.pieces)) is not None
        return self.parses

    def is_repeated_by(self, arguments: str) -> bool:
        return arguments.startswith("{") and self.is_whole() and arguments == "".join(self.pieces)


class CallTracker:
    """Assembles the tool calls of one response.

    >>> calls = CallTracker()
    >>> calls.feed(0, "c1", "add", '{"a"')
    [ToolCallStarted(id='c1', name='add', metadata={}), ToolCallDelta(id='c1', arguments_delta='{"a"')]
    >>> calls.feed(0, None, None, ": 1}")
    [ToolCallDelta(id='c1', arguments_delta=': 1}')]
    >>> calls.close()[0].arguments
    {'a': 1}

    `taken` contains the ids that are already used in the thread. `in_turn` is true if the API never returns to a call.
    """

    def __init__(self, taken: Iterable[str] = (), *, in_turn: bool = False) -> None:
        self._taken = list(taken)
        self._used = set(self._taken)
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._in_turn = in_turn
        self._last: _Call | None = None  # the call that the last delta belonged to
        self._started = 0
        self._tried = 0  # the last k for which the id `call_<k>` was tried

    @classmethod
    def after(cls, messages: Iterable[Message], *, in_turn: bool = False) -> CallTracker:
        """Return a tracker that does not reuse the ids of the calls in `messages`."""
        return cls((call.id for message in messages for call in message.tool_calls), in_turn=in_turn)

    def feed(
        self,
        index: int | None,
        id: str | None,
        name: str | None,
        arguments: str | Mapping[str, Any] | None,
        metadata: Mapping[str, Any] = NOTHING,
    ) -> list[Event]:
        """Add a delta, and return the events for it.

        `metadata`, such as ``{"server": True}``, is added to the metadata of the call.
        """
        if index is not None and index < 0:
            index = None
        if not isinstance(id or "", str) or not isinstance(name or "", str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StreamError("malformed_event", f"a call's id or name is not text: got {repr((id, name))[:80]}")
        call = self._find(index, id or "", name or "")
        events = self.leave() if call is not self._last else []
        self._last = call
        if id and not call.wire_id:
            call.wire_id = id
            self._by_id.setdefault(id, call)
        call.name = call.name or name or ""
        if metadata:
            call.metadata.update(metadata)
        if arguments is not None and not isinstance(arguments, str):
            arguments = json_text(arguments)
        if arguments and not call.is_repeated_by(arguments):
            if self._in_turn and call.state == "completed" and arguments.strip():
                fault = f"the call {call.id} was complete, and gets more arguments: {arguments[:80]}"
                raise StreamError("malformed_event", fault)
            call.pieces.append(arguments)
            if call.state == "started":
                return [*events, ToolCallDelta(call.id, arguments)]
        return [*events, *self._start()] if call.state == "waiting" else events

    def leave(self) -> list[Event]:
        """Return the events for the last call, if it is complete because something else begins."""
        last = self._last
        is_complete = self._in_turn and last is not None and last.state == "started" and last.is_whole()
        return self._complete(last) if is_complete and last is not None else []

    def id_of(self, index: int) -> str:
        """Return the id of the call that has this `index`, or "" if there is no such call."""
        call = self._by_index.get(index)
        return call.id if call is not None else ""

    def complete(self, index: int) -> list[Event]:
        """Complete the call that has this `index`, and return the events for it."""
        call = self._by_index.get(index)
        return self._start(force=True) + self._complete(call) if call is not None else []

    def close(self, *, failed: bool = False) -> list[Event]:
        """Complete all calls. If the stream failed, mark the unfinished ones as incomplete."""
        events = self._start(force=True)
        for call in self._calls:
            events += self._complete(call, failed=failed)
        return events

    def _find(self, index: int | None, id: str, name: str) -> _Call:
        if index is None:
            call = self._by_id.get(id) if id else self._calls[-1] if self._calls else None
            fits = call is not None and (bool(id) or _may_be_named(call, name))
            return call if call is not None and fits else self._new(None)
        call = self._by_index.get(index)
        if call is None:
            return self._new(index) if name or id not in self._by_id else self._by_id[id]
        is_other = bool(id and call.wire_id and id != call.wire_id)
        return self._new(index) if is_other and (name or call.is_whole()) else call

    def _new(self, index: int | None) -> _Call:
        call = _Call(len(self._calls))
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _start(self, *, force: bool = False) -> list[Event]:
        events: list[Event] = []
        while self._started < len(self._calls):
            call = self._calls[self._started]
            if not force and not (call.wire_id and call.name):
                break
            self._started += 1
            call.state = "started"
            call.id = self._unique(call)
            events.append(ToolCallStarted(call.id, call.name, dict(call.metadata)))
            if call.pieces:
                events.append(ToolCallDelta(call.id, "".join(call.pieces)))
        return events

    def _unique(self, call: _Call) -> str:
        id, k = call.wire_id, len(self._taken) + call.position
        if not id or id in self._used:
            k = max(k, self._tried)
            while (id := f"call_{k}") in self._used:
                k += 1
            self._tried = k
        self._used.add(id)
        return id

    def _complete(self, call: _Call, *, failed: bool = False) -> list[Event]:
        if call.state != "started":
            return []
        call.state = "completed"
        raw = "".join(call.pieces)
        arguments = read_arguments(raw)
        metadata = dict(call.metadata)
        if failed or arguments is None:
            metadata["error"] = "incomplete" if failed else "invalid_json"
        return [ToolCallCompleted(call.id, call.name, arguments or {}, raw, metadata)]


def _may_be_named(call: _Call, name: str) -> bool:
    return not name or not call.name or (name == call.name and not call.is_whole())
