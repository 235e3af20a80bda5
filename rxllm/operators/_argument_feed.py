"""Feed a tool its arguments while the model is still writing them.

=========================================  ============================================================================
the model writes                           effect
=========================================  ============================================================================
an argument that is not a stream           It is kept until the tool starts.
the beginning of a stream's argument       The tool can start once all its other arguments are complete. If an
                                           optional argument is missing, the tool waits for the end of the call.
a piece of a string                        The ``Stream[str]`` emits it.
an element of an array                     The ``Stream[T]`` emits it as a T.
the end of a stream's argument             The stream stays open. It completes when the next argument begins or the call
                                           ends. If a fault is found by then, the stream fails instead.
a plain argument that has been written,    Every open stream fails with ``ToolError("invalid_arguments")``.
once the tool has started
an invalid element                         Every open stream fails with ``ToolError("invalid_arguments")``.
the end of the call                        A stream whose argument is unfinished or missing fails in the same way.
=========================================  ============================================================================

While `MOST` items are waiting in a stream, the model's socket is not read, unless the tool is waiting for an item from
another stream of the same call. A stream that the tool has stopped reading drops its items.

At most `SLICE` characters are read at a time. The rest of a long delta waits until other tasks have run, and until
there is room for more items. So a frame of any length neither stops the event loop nor fills the memory with items.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from rxllm.operators._json_scanner import JSONScanner, Key
from rxllm.runtime import READ_TWICE, Stream, from_async_iter
from rxllm.values import FunctionTool, ToolCall, ToolError, described
from rxllm.values.json_text import MAX_DEPTH, faults_of, unescaped
from rxllm.values.partials import Pieces

MOST = 64
"""The model's socket is not read while this many items are waiting in a stream."""

SLICE = 8_192
"""The maximum number of characters that are read before other tasks run."""


class ArgumentFeed:
    """The arguments received so far for one call.

    ``on_read(feed)`` is called each time some of them have been read. ``on_room()`` is called when `is_full` may have
    become False.
    """

    def __init__(
        self,
        tool: FunctionTool[..., Any],
        id: str,
        on_read: Callable[[ArgumentFeed], None],
        on_room: Callable[[], None],
    ) -> None:
        self.tool, self.id = tool, id
        self.arguments: dict[str, Any] = {}
        self._on_read, self._on_room = on_read, on_room
        self._unread = deque[str]()  # slices of the deltas
        self._is_scheduled = False
        self._items = {name: _Items(self._make_room) for name in tool.streams}
        self._missing = set(tool.parameters)
        self._scanner = JSONScanner(self)
        self._text = Pieces()
        self._open: list[tuple[Key, int]] = []  # the key and the start of each open value
        self._written: _Items | None = None  # the stream whose argument ended most recently
        self._call: ToolCall | None = None  # the whole call, once it is complete
        self._use: Callable[[ToolCall], None] | None = None
        self._has_stream = self._is_over = False
        self.has_started = False  # also True while the tool is waiting for other tools to finish
        self.is_running = False

    @property
    def is_ready(self) -> bool:
        """Whether the tool can start: a stream has begun, and all plain arguments are complete."""
        return self._has_stream and not self._is_over and self._missing <= self._items.keys()

    @property
    def is_full(self) -> bool:
        """Whether reading the model's output should pause.

        Reading continues while the tool is waiting for an item, because the model may write items for other streams
        first.
        """
        return bool(self._unread) or self._is_behind()

    def _is_behind(self) -> bool:
        streams = self._items.values()
        is_awaited = any(items.is_awaited for items in streams)
        return self.is_running and not is_awaited and any(len(items.waiting) >= MOST for items in streams)

    @property
    def streams(self) -> dict[str, Stream[Any]]:
        """The streams to pass to the tool. Each can be read only once."""
        return {name: from_async_iter(items.read) for name, items in self._items.items()}

    def feed(self, delta: str) -> None:
        if self._is_over:
            return
        is_first = not self._unread
        self._unread.extend(delta[start : start + SLICE] for start in range(0, len(delta), SLICE))
        if is_first:
            self._read()

    def _read(self) -> None:
        """Read one slice. If more are left, read the next one once other tasks have run."""
        self._is_scheduled = False
        if not self._unread or self._is_behind():
            return
        piece = self._unread.popleft()
        self._text.append(piece)
        self._scanner.feed(piece)
        self._on_read(self)
        if self._unread:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._read)
            return
        if self._call is not None:
            self._end(self._call)
        self._on_room()

    def _make_room(self) -> None:
        if self._unread and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._read)
        self._on_room()

    def when_complete(self, use: Callable[[ToolCall], None]) -> None:
        """Pass the whole tool call to `use` as soon as the model has finished it."""
        self._use = use
        if self._call is not None:
            use(self._call)

    def end(self, call: ToolCall) -> None:
        """End the streams, now that `call` is complete."""
        self._call = call
        if self._use is not None:
            self._use(call)
        if not self._unread:
            self._end(call)

    def _end(self, call: ToolCall) -> None:
        if "error" in call.metadata:
            self._fail(f"the arguments are not complete: {call.metadata['error']}")
        for name in self._missing & self._items.keys():
            self._fail(f"{name} is missing, but required")
        self._end_written()
        self._fail("the arguments ended too early")  # affects only streams that are still open

    def rewritten(self, call: ToolCall) -> ToolError | None:
        """Return an error if a plain argument of the complete `call` is not the one that the tool has worked with."""
        if "error" not in call.metadata:
            for name, value in self.arguments.items():
                if call.arguments.get(name) != value:
                    return self._error(f"{name} is written twice; the tool has worked with the first value")
        return None

    def close(self) -> None:
        """Drop all items, now that the tool has ended."""
        self._is_over = True
        self._use = None
        self._unread.clear()
        for items in self._items.values():
            items.close()
        # These refer to the step. Drop them, because a reference cycle would delay clean-up.
        on_room, self._on_room, self._on_read = self._on_room, _nothing, _nothing
        on_room()

    def _fail(self, fault: str) -> None:
        error = self._error(fault)
        for items in self._items.values():
            items.end(error)

    def _error(self, fault: str) -> ToolError:
        message = f"the arguments are invalid: {fault}"
        return ToolError("invalid_arguments", message, tool_name=self.tool.name, tool_call_id=self.id)

    def on_open(self, kind: str, key: Key, at: int) -> None:
        self._open.append((key, at))
        if len(self._open) > MAX_DEPTH:
            self._scanner.stop()
        if len(self._open) == 2:
            if str(key) in self._items:
                self._begin_stream(kind, str(key))
            elif self.has_started and str(key) in self.arguments:
                self._fail(f"{key} is written twice")  # the tool works with the first value, the record has the second
            self._end_written()

    def _begin_stream(self, kind: str, name: str) -> None:
        expected, form = ('"', "a string") if self._is_text(name) else ("[", "an array")
        if kind != expected:
            self._fail(f"{name} must be {form}")
        elif name not in self._missing:
            self._fail(f"{name} is written twice")
        self._missing.discard(name)
        self._has_stream = True

    def on_text(self, raw: str) -> None:
        if len(self._open) == 2 and (name := str(self._open[1][0])) in self._items and self._is_text(name):
            self._items[name].add(unescaped(raw))

    def on_close(self, at: int) -> None:
        key, start = self._open.pop()
        if len(self._open) == 1:
            self._end_argument(str(key), start, at)
        elif len(self._open) == 2 and (name := str(self._open[1][0])) in self._items:
            self._add_element(name, key, start, at)

    def _end_argument(self, name: str, start: int, end: int) -> None:
        if name in self._items:
            self._written = self._items[name]
        elif not self.has_started:
            # If the argument cannot be parsed, the tool does not start before the call is complete.
            with suppress(ValueError, RecursionError):
                self.arguments[name] = json.loads(self._text.slice(start, end))
                self._missing.discard(name)

    def _end_written(self) -> None:
        if self._written is not None:
            self._written.end()
            self._written = None

    def _add_element(self, name: str, index: Key, start: int, end: int) -> None:
        try:
            item = self.tool.streams[name].read(json.loads(self._text.slice(start, end)))
        except Exception as error:  # a validator in the type can raise any error
            faults = [((name, index, *path), fault) for path, fault in faults_of(error)]
            self._fail(described(faults))
        else:
            self._items[name].add(item)

    def _is_text(self, name: str) -> bool:
        return self.tool.streams[name].hint is str


def _nothing(*_: object) -> None:
    pass


class _Items:
    """Holds the items of one stream until the tool reads them."""

    def __init__(self, on_room: Callable[[], None]) -> None:
        self.waiting = deque[Any]()
        self.is_awaited = False  # whether the tool is waiting for the next item
        self._on_room = on_room
        self._error: ToolError | None = None
        self._has_ended = self._is_closed = self._is_read = False
        self._changed = asyncio.Event()

    def add(self, item: Any) -> None:
        if not (self._has_ended or self._is_closed):
            self.waiting.append(item)
            self._changed.set()

    def end(self, error: ToolError | None = None) -> None:
        if not self._has_ended:
            self._has_ended, self._error = True, error
            self._changed.set()

    def close(self) -> None:
        self._is_closed = True
        self.waiting.clear()
        on_room, self._on_room = self._on_room, lambda: None
        on_room()

    async def read(self) -> AsyncIterator[Any]:
        if self._is_read:
            raise RuntimeError(READ_TWICE)
        self._is_read = True
        try:
            while True:
                while self.waiting:
                    item = self.waiting.popleft()
                    if len(self.waiting) == MOST // 2:
                        self._on_room()
                    yield item
                if self._error is not None:
                    raise self._error
                if self._has_ended or self._is_closed:
                    return
                await self._wait()
        finally:
            self.close()

    async def _wait(self) -> None:
        self._changed.clear()
        self.is_awaited = True
        self._on_room()
        try:
            await self._changed.wait()
        finally:
            self.is_awaited = False
