"""Convert chunks to events.

* Fragments can arrive late, so calls are completed only at the end of the stream.
* Fragments can even arrive before their call.
* A fragment belongs to the latest call that has the same index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, cast

from reactivex import Observable, abc

from rxllm.chunks._stream_chunk import (
    FIELDS,
    CallRecord,
    Index,
    StreamChunk,
    annotation_key,
    as_chunk,
    as_json,
    is_stream_only,
    latest_counters,
    mapping,
    not_a_chunk,
    read_call,
    read_call_metadata,
    read_fragment,
    to_finish_reason,
    to_usage,
)
from rxllm.events import Event
from rxllm.runtime import Stream, conclude
from rxllm.values import (
    FilePart,
    Image,
    ImagePart,
    LLMError,
    Message,
    ProviderPart,
    SourcePart,
    StreamError,
    TextPart,
    ThinkingPart,
)
from rxllm.values.argument_checks import shown
from rxllm.wire.event_order import Blocks
from rxllm.wire.frames import raw_kind
from rxllm.wire.tool_calls import CallTracker

T = TypeVar("T")
T_in = TypeVar("T_in", contravariant=True)


_ARGUMENT_MARKS = frozenset({"raw_arguments", "invalid_arguments", "unparseable_arguments"})
"""Metadata keys that mark unparsed arguments. They are ignored, because the joined fragments may be valid JSON."""
_IGNORED = frozenset({"terminal?", "keepalive?", "done_at_unix_nano", "builtin_tool_started", "response_id", "model"})
_NOTED = frozenset({"reasoning_details", "logprobs"})


def from_chunks(
    messages: Iterable[Message] = (),
) -> Callable[[Observable[StreamChunk | Mapping[str, Any]]], Stream[Event]]:
    """Convert the `StreamChunk`s of one response to events.

    ::

        source             --text--call--fragment--meta--|
        from_chunks()      --(ab)--(cd)--e---------u-----(fg|)

    a: ``MessageStarted``, b: ``TextDelta``, c: ``TextCompleted``, d: ``ToolCallStarted``, e: ``ToolCallDelta``,
    u: ``UsageUpdated``, f: ``ToolCallCompleted``, g: one ``MessageCompleted``, however many meta chunks there are.

    >>> from reactivex import of
    >>> from rxllm import chunks, operators as ops
    >>> call = chunks.tool_call("add", metadata={"id": "c1", "start": True})
    >>> rest = chunks.meta({"tool_call_args": {"index": 0, "fragment": '{"a": 1}'}, "finish_reason": "tool_use"})
    >>> of(chunks.text("I will."), call, rest).pipe(from_chunks(), ops.to_response()).run()
    Response('I will.', calls=[add(a=1)], tool_calls, 0 tokens)

    A mapping with a chunk's fields is also accepted. `messages` is the thread that the response answers. A call without
    an id is given one that is unique in the thread. ``metadata["error"]`` marks a call whose arguments never arrived or
    are not a JSON object. Unknown keys and types become ``RawChunk``s. The default finish reason is ``stop``.

    If the source fails, or a meta chunk has an ``error``, all blocks and calls are completed. An ``ErrorEvent`` then
    ends the stream. An ``LLMError`` before the first chunk goes to ``on_error`` instead.
    """
    messages = tuple(messages)
    return events_of(lambda: ChunkFeeder(messages))


class ChunkFeeder:
    """Converts one response's chunks to events.

    >>> from rxllm import chunks
    >>> feeder = ChunkFeeder()
    >>> [type(event).__name__ for event in feeder.feed(chunks.text("Hi"))]
    ['MessageStarted', 'TextDelta']
    >>> [type(event).__name__ for event in feeder.close()]
    ['TextCompleted', 'MessageCompleted']

    If a call has no id, the feeder gives it one that does not occur in `messages`.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        messages = tuple(messages)
        self._blocks = Blocks(CallTracker.after(messages))
        self._calls = _LiveCalls(self._blocks, sum(len(message.tool_calls) for message in messages))
        self._counters: dict[str, Any] = {}
        self._notes: dict[str, list[Any]] = {}
        self._cited: set[Any] = set()
        self._readers: dict[str, Callable[[Any], bool]] = {
            "tool_call_args": self._calls.add,
            "tool_call_metadata": self._calls.update,
            "annotations": self._read_annotations,
            "usage": self._read_usage,
            "finish_reason": self._read_finish_reason,
        }

    @property
    def started(self) -> bool:
        return self._blocks.started

    @property
    def ended(self) -> bool:
        return self._blocks.ended

    def feed(self, chunk: StreamChunk | Mapping[str, Any]) -> list[Event]:
        """Return the events for `chunk`.

        Raises ``StreamError("malformed_event")`` if `chunk` or its text is invalid.
        """
        if self.ended:
            return []
        if not isinstance(chunk, StreamChunk):
            chunk = _read_chunk(chunk)
        if chunk.text is not None and not isinstance(chunk.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StreamError("malformed_event", f"the text of a StreamChunk must be a string, not {shown(chunk.text)}")
        if chunk.type == "content":
            self._blocks.text(chunk.text or "")
        else:
            self._read_other(chunk)
        if not self.started:
            self._blocks.start()
        return self._blocks.take()

    def close(self) -> list[Event]:
        """Return the events that end the stream. The finish reason is ``stop`` if no chunk gave one."""
        if not self.ended:
            self._calls.settle()
            self._blocks.note(self._notes)
            self._blocks.finish("stop", None)
            self._blocks.end()
        return self._blocks.take()

    def fail(self, error: Exception) -> list[Event]:
        """Return the events that complete all open blocks and calls, followed by the event for the error."""
        if not self.ended:
            self._fail(as_stream_error(error))
        return self._blocks.take()

    def _read_other(self, chunk: StreamChunk) -> None:
        match chunk.type:
            case "thinking" if not is_stream_only(chunk):
                self._read_thinking(chunk.text, mapping(chunk.metadata))
            case "tool_call" if self._calls.begin(chunk):
                pass
            case "meta":
                self._read_meta(mapping(chunk.metadata))
            case "content_part" if not is_stream_only(chunk) and self._read_part(chunk.content_part):
                pass
            case _:
                fields = {name: value for name in FIELDS if (value := getattr(chunk, name))}
                self._blocks.raw(raw_kind(str(chunk.type)), fields)

    def _read_thinking(self, text: Any, metadata: Mapping[str, Any]) -> None:
        if isinstance(text, str):
            self._blocks.thinking(text)
        signature = metadata.get("signature")
        signature = signature if isinstance(signature, str) and signature else None
        opaque = {key: value for key, value in metadata.items() if key != "signature"}
        if signature or opaque:
            self._blocks.sign(signature, opaque)
        if signature or (opaque and not text):  # a signature covers all the thinking before it
            self._blocks.close_block()

    def _read_meta(self, metadata: Mapping[str, Any]) -> None:
        id, model = metadata.get("response_id"), metadata.get("model")
        self._blocks.start(id=id if isinstance(id, str) else None, model=model if isinstance(model, str) else None)
        unknown = {key: value for key, value in metadata.items() if not self._read_key(key, value)}
        if metadata.get("keepalive?"):
            unknown.pop("provider_event", None)
        error = unknown.pop("error", None)
        if unknown:
            self._blocks.raw("meta", unknown)
        if error:
            self._fail(error if isinstance(error, LLMError) else StreamError("adapter_error", _message_of(error)))

    def _read_key(self, key: str, value: Any) -> bool:
        """Read one key of a meta chunk. Return False if the key is unknown or its value is malformed."""
        if value is None or key in _IGNORED:
            return True
        if key in _NOTED and isinstance(value, list):
            self._notes.setdefault(key, []).extend(cast(list[Any], value))
            return True
        return key in self._readers and self._readers[key](value)

    def _read_annotations(self, value: Any) -> bool:
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in cast(list[Any], value)):
            return False
        for annotation in cast(list[Mapping[str, Any]], value):
            if (key := annotation_key(annotation)) not in self._cited:
                self._cited.add(key)
                self._blocks.source(dict(annotation))
        return True

    def _read_usage(self, value: Any) -> bool:
        if isinstance(value, Mapping):
            self._counters = latest_counters(self._counters, mapping(value))
            self._blocks.usage(to_usage(self._counters))
        return isinstance(value, Mapping)

    def _read_finish_reason(self, value: Any) -> bool:
        self._blocks.finish(to_finish_reason(value), str(value))
        return True

    def _read_part(self, part: Any) -> bool:
        """Add a complete message part to the response. Return False if `part` is not a supported message part."""
        if not isinstance(part, SourcePart):  # a source can arrive in the middle of a text block
            self._blocks.close_block()
        match part:
            case TextPart():
                self._blocks.text(part.text)
            case ThinkingPart():
                self._read_thinking(part.text, {**(part.provider_data or {}), "signature": part.signature})
            case FilePart():
                self._blocks.file(part.file)
            case ImagePart(image=Image() as image) if image.source in ("url", "binary", "base64"):
                data = {"url": image.data} if image.source == "url" else {"data": image.to_binary()}
                self._blocks.file({"mime_type": image.mime_type or "image/*", **data})
            case SourcePart():
                self._blocks.source(part.source)
            case ProviderPart():
                self._blocks.part(part)
            case _:
                return False
        return True

    def _fail(self, error: LLMError) -> None:
        self._calls.settle()
        self._blocks.error(error)


class _LiveCall:
    __slots__ = ("call", "has_fragments", "leading_space", "opened", "position")

    def __init__(self, position: int, call: CallRecord) -> None:
        self.position = position
        self.call = call
        self.opened = False  # True once a fragment containing non-whitespace has arrived
        self.leading_space = ""
        self.has_fragments = False  # True once any fragment has arrived, even an empty one


class _LiveCalls:
    """The tool calls in one response. `before` is the number of calls that the thread already contains."""

    def __init__(self, blocks: Blocks, before: int) -> None:
        self._blocks = blocks
        self._before = before
        self._calls: list[_LiveCall] = []
        self._latest: dict[Index, _LiveCall] = {}
        # Fragments and metadata can arrive before the call they belong to.
        self._early_fragments: dict[Index, list[str]] = {}
        self._early_updates: dict[Index, dict[str, Any]] = {}

    def begin(self, chunk: StreamChunk) -> bool:
        """Begin a tool call. Return False if the chunk does not name a tool."""
        call = read_call(chunk)
        if call is None:
            return False
        live = _LiveCall(len(self._calls), call)
        self._calls.append(live)
        self._latest[call.index] = live
        metadata = {key: value for key, value in call.metadata.items() if key not in _ARGUMENT_MARKS}
        metadata |= {"server": True} if call.builtin else {}
        metadata |= self._early_updates.pop(call.index, {})
        self._blocks.call(live.position, call.id or f"call_{self._before + live.position}", call.name, None, metadata)
        for fragment in self._early_fragments.pop(call.index, []):
            self._emit_fragment(live, fragment)
        if call.first_fragment:
            self._emit_fragment(live, call.first_fragment)
        return True

    def add(self, entry: Any) -> bool:
        """Add the fragment from a ``tool_call_args`` entry. Return False if the entry is malformed."""
        fragment = read_fragment(entry)
        if fragment is None:
            return False
        index, text = fragment
        live = self._latest.get(index)
        if live is None:
            self._early_fragments.setdefault(index, []).append(text)
        else:
            self._emit_fragment(live, text)
        return True

    def update(self, entry: Any) -> bool:
        """Update a call with metadata from a ``tool_call_metadata`` entry. Return False if the entry is malformed."""
        update = read_call_metadata(entry)
        if update is None:
            return False
        index, metadata = update
        live = self._latest.get(index)
        if live is None:
            self._early_updates.setdefault(index, {}).update(metadata)
        else:
            self._blocks.call(live.position, None, None, None, metadata)
        return True

    def settle(self) -> None:
        """Add the arguments of any call that received no fragments.

        A fragment or update that belongs to no call becomes a raw event.
        """
        for live in self._calls:
            arguments = live.call.arguments
            if not live.opened and arguments:
                text = as_json(arguments)
                self._blocks.call(live.position, None, None, repr(arguments) if text is None else text)
            if not live.has_fragments and live.call.expects_fragments:
                self._blocks.call(live.position, None, None, None, {"error": "missing_fragments"})
        for index, fragments in self._early_fragments.items():
            self._blocks.raw("tool_call_args", {"index": index, "fragment": "".join(fragments)})
        for index, metadata in self._early_updates.items():
            self._blocks.raw("tool_call_metadata", {"index": index, "metadata": metadata})

    def _emit_fragment(self, live: _LiveCall, fragment: str) -> None:
        live.has_fragments = True
        if not live.opened:
            fragment = live.leading_space + fragment
            text = fragment.lstrip()
            if not text:
                live.leading_space = fragment
                return
            live.opened = True
            # Some decoders drop the opening brace that follows the tool's name.
            fragment = "{" + fragment if text[0] in '"}' else fragment
        if fragment:
            self._blocks.call(live.position, None, None, fragment)


def as_stream_error(error: Exception) -> LLMError:
    """Convert an exception to a `StreamError`. An `LLMError` is returned unchanged."""
    if isinstance(error, LLMError):
        return error
    failure = StreamError("adapter_error", f"the chunk source failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _read_chunk(item: Any) -> StreamChunk:
    chunk = as_chunk(item)
    if isinstance(chunk, StreamChunk):
        return chunk
    raise StreamError("malformed_event", not_a_chunk(item))


def _message_of(error: Any) -> str:
    message = mapping(error).get("message") or error
    return message if isinstance(message, str) else repr(message)


class Feeder(Protocol[T_in]):
    """Converts chunks to events.

    `started` is True after the first event, and `ended` after the last.
    """

    @property
    def started(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    def feed(self, chunk: T_in, /) -> Iterable[Event]: ...

    def close(self) -> Iterable[Event]: ...

    def fail(self, error: Exception, /) -> Iterable[Event]: ...


def events_of(make: Callable[[], Feeder[T]]) -> Callable[[Observable[T]], Stream[Event]]:
    """Return an operator that creates a new feeder for each subscription.

    After an error, the operator emits the feeder's ``fail`` events and completes. Two kinds of error go to
    ``on_error`` instead: an ``LLMError`` from the source before the first event, and any error raised by ``fail``.
    """

    def operator(source: Observable[T]) -> Stream[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            feeder = make()
            pending = deque[Event]()
            delivering = False  # stays True if a subscriber raises an exception

            def on_next(chunk: T) -> None:
                nonlocal delivering
                try:
                    pending.extend(feeder.feed(chunk))
                except Exception as error:  # the chunk is invalid
                    fail(error)
                    return
                if delivering:
                    return
                delivering = True
                while pending:
                    observer.on_next(pending.popleft())
                delivering = False
                if feeder.ended:
                    observer.on_completed()

            def on_error(error: Exception) -> None:
                if delivering or (isinstance(error, LLMError) and not feeder.started):
                    observer.on_error(error)
                else:
                    fail(error)

            def on_completed() -> None:
                try:
                    events = feeder.close()
                except Exception as error:  # an exception raised here would be lost
                    fail(error)
                else:
                    end(events)

            def fail(error: Exception) -> None:
                try:
                    events = feeder.fail(error)
                except Exception as failure:
                    observer.on_error(failure)
                else:
                    end(events)

            def end(events: Iterable[Event]) -> None:
                nonlocal delivering
                pending.extend(events)
                if not delivering:
                    delivering = True
                    conclude(observer, tuple(pending))

            return source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator
