"""The fold: event by event to a Response, a StepResult or a ChatResult.

A `StreamCollector` is an immutable value, and each event costs O(1): what belongs to the current message is appended to
a log that successive states share, each with its own length (a fork copies); everything else is in `rest`, which most
events leave alone. What was said is put together only when somebody asks, by `fold_message`.

The finish reason is derived: complete client calls turn ``stop``, ``other`` and None into ``tool_calls``; ``length``,
``content_filter`` and ``error`` win over calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import msgspec

from rxllm.events import (
    AskUserRequested,
    ChatCompleted,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    SourceAdded,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolHalt,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.values import (
    ChatResult,
    FilePart,
    FinishReason,
    LLMError,
    Message,
    Part,
    ProviderPart,
    Response,
    SourcePart,
    StepResult,
    TextPart,
    ThinkingPart,
    Thread,
    ToolCall,
    ToolCallPart,
    Usage,
)

AWAITING_USER = "<awaiting user response>"
"""What the model is told of a call that waits for the user."""

_LOGGED = frozenset(
    {
        MessageStarted,
        TextDelta,
        TextCompleted,
        ThinkingDelta,
        ThinkingCompleted,
        ToolCallStarted,
        ToolCallDelta,
        ToolCallCompleted,
        SourceAdded,
        FileAdded,
        MessageCompleted,
    }
)

_DONE = ("stop", "length", "content_filter", "error", "other")

PAUSE = "pause_turn"
"""The raw finish reason of a provider that wants to be asked again with what it has said so far."""


class Rest(msgspec.Struct, frozen=True):
    """All of a state but the log.

    `halt` is the first halting event of the step. `error` and `metadata` outlive the step; `earlier` are those from
    before it, to which a restart goes back.
    """

    steps: tuple[StepResult, ...] = ()
    tool_results: tuple[Message, ...] = ()
    halt: ToolHalt | AskUserRequested | None = None
    usage: Usage = Usage()
    finish_reason: FinishReason | None = None
    raw_finish_reason: str | None = None
    error: LLMError | None = None
    metadata: Mapping[str, Any] = {}
    chat_result: ChatResult | None = None
    earlier: tuple[LLMError | None, Mapping[str, Any]] = (None, {})
    fresh: bool = False  # nothing folded since the last StepCompleted


class StreamCollector(msgspec.Struct, frozen=True, eq=False, repr_omit_defaults=True):
    """The state of a fold. Start with ``StreamCollector()``, or ``StreamCollector(thread)`` for a step or a chat.

    >>> from reactivex import from_iterable
    >>> events = from_iterable([TextDelta("hel"), TextDelta("lo")])
    >>> events.scan(StreamCollector.apply_event, StreamCollector()).run().current_text
    'hello'
    """

    thread: Thread | None = None
    log: list[Event] = msgspec.field(default_factory=list[Event])
    length: int = 0
    rest: Rest = Rest()

    def apply_event(self, event: Event) -> StreamCollector:
        """The state after `event`. Total over the union; the one thing that raises is a raw usage with unknown keys."""
        rest = self.rest
        if type(event) in _LOGGED or (isinstance(event, RawChunk) and isinstance(event.data, ProviderPart)):
            log, length = self.log, self.length
            if len(log) != length:
                log = log[:length]
            log.append(event)
            if rest.fresh:
                rest = msgspec.structs.replace(rest, fresh=False)
            if type(event) is MessageCompleted:
                rest = _complete(rest, event)
            return StreamCollector(self.thread, log, length + 1, rest)
        match event:
            case StepCompleted(result=result):
                return StreamCollector(result.thread, [], 0, _next_step(rest, result))
            case StepRestarted():
                return StreamCollector(self.thread, [], 0, _same_step(rest))
            case _:
                changed = _apply_to_rest(rest, event)
                return self if changed is rest else StreamCollector(self.thread, self.log, self.length, changed)

    @property
    def message(self) -> Message:
        """What the current message says so far."""
        return fold_message(self.log[: self.length])

    @property
    def current_text(self) -> str:
        """The text of the current message so far."""
        return self.message.text

    @property
    def current_tool_calls(self) -> Mapping[str, ToolCall]:
        """The calls of the current message so far, unfinished ones included, by id."""
        return _fold_calls(self.log[: self.length])

    @property
    def tool_call_order(self) -> tuple[str, ...]:
        return tuple(self.current_tool_calls)

    @property
    def last_message(self) -> Message | None:
        """The message of the step's ``MessageCompleted``."""
        completed = (event for event in reversed(self.log[: self.length]) if isinstance(event, MessageCompleted))
        return next((event.message for event in completed), None)

    @property
    def steps(self) -> tuple[StepResult, ...]:
        return self.rest.steps

    @property
    def tool_results(self) -> tuple[Message, ...]:
        return self.rest.tool_results

    @property
    def halt(self) -> ToolHalt | AskUserRequested | None:
        return self.rest.halt

    @property
    def usage(self) -> Usage:
        """What the current step has cost."""
        return self.rest.usage

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.rest.finish_reason

    @property
    def raw_finish_reason(self) -> str | None:
        return self.rest.raw_finish_reason

    @property
    def error(self) -> LLMError | None:
        return self.rest.error

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.rest.metadata

    @property
    def chat_result(self) -> ChatResult | None:
        return self.rest.chat_result

    @property
    def done(self) -> bool:
        return self.rest.chat_result is not None

    def to_response(self) -> Response[Any]:
        """The response so far; right after a ``StepCompleted``, that step's."""
        rest = self.rest
        if rest.fresh:
            return rest.steps[-1].response
        message = self.message
        calls = tuple(call for call in message.tool_calls if not is_server(call) and not is_incomplete(call))
        wins = rest.finish_reason in ("length", "content_filter", "error")
        return Response(
            message=message,
            output_text=message.text,
            tool_calls=calls,
            finish_reason=rest.finish_reason if wins or not calls else "tool_calls",
            raw_finish_reason=rest.raw_finish_reason,
            usage=rest.usage,
            error=rest.error if rest.finish_reason == "error" else None,
            id=message.metadata.get("id"),
            model=message.metadata.get("model"),
            metadata=dict(rest.metadata),
        )

    def to_step_result(self) -> StepResult:
        """The step so far; right after a ``StepCompleted``, that step. Raises ``ValueError`` without a thread."""
        if self.rest.fresh:
            return self.rest.steps[-1]
        if self.thread is None:
            raise ValueError("a step needs a thread: start from StreamCollector(thread)")
        response = self.to_response()
        order = {call.id: place for place, call in enumerate(response.tool_calls)}
        results = tuple(sorted(self.tool_results, key=lambda result: order.get(result.tool_call_id or "", len(order))))
        return StepResult(
            thread=self.thread + answer(response) + results,
            response=response,
            tool_results=results,
            done=self.halt is not None or (response.finish_reason in _DONE and not is_unfinished(response)),
            metadata=halt_metadata(self.halt),
        )

    def to_chat_result(self) -> ChatResult:
        """The chat's result; before its ``ChatCompleted``, what there is of it, halted as ``cancelled`` or ``error``.

        Raises ``ValueError`` with neither a result nor a thread.
        """
        if self.chat_result is not None:
            return self.chat_result
        if self.thread is None:
            raise ValueError("a chat needs a thread: start from StreamCollector(thread)")
        return ChatResult(
            thread=self.thread,
            final_response=self.steps[-1].response if self.steps else self.to_response(),
            steps=self.steps,
            halted_reason="cancelled" if self.error is None else "error",
            usage=sum((step.response.usage for step in self.steps), self.usage),
            error=self.error,
            metadata=dict(self.metadata),
        )

    def _own(self) -> tuple[Any, ...]:
        return (self.thread, self.message, self.current_tool_calls, self.last_message, self.rest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamCollector) and self._own() == other._own()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[Any, ...]:
        return (StreamCollector, (self.thread, self.log[: self.length], self.length, self.rest))

    def __repr__(self) -> str:
        return f"StreamCollector({self.current_text!r}, {self.finish_reason}, {len(self.steps)} steps)"


def answer(response: Response[Any]) -> tuple[Message, ...]:
    """What a response adds to its thread: its message, with the calls that are to be answered and no others."""
    message = response.message
    if message is None:
        return ()
    kept = tuple(c for c in message.tool_calls if is_server(c)) + response.tool_calls
    kept = kept if response.finish_reason == "tool_calls" else tuple(c for c in kept if is_server(c))
    if kept == message.tool_calls:
        return (message,) if message.content or kept else ()
    ids = {call.id for call in kept}
    calls = tuple(call for call in message.tool_calls if call.id in ids)
    parts = tuple(part for part in message.parts if not isinstance(part, ToolCallPart) or part.id in ids)
    content = _content(parts)
    return (replace(message, content=content, tool_calls=calls),) if content or calls else ()


def is_unfinished(response: Response[Any]) -> bool:
    """Whether the model waits for answers to its calls, or for nothing but to be asked again."""
    waits = response.finish_reason == "tool_calls" and bool(response.tool_calls)
    return waits or response.raw_finish_reason == PAUSE


def halt_metadata(halt: ToolHalt | AskUserRequested | None) -> dict[str, Any]:
    """What a step's metadata says of its halt."""
    match halt:
        case None:
            return {}
        case AskUserRequested():
            return {
                "halted_reason": "ask_user",
                "pending_tool_call_id": halt.tool_call_id,
                "pending_question": halt.question,
                "ask_user_opts": dict(halt.opts),
            }
        case ToolHalt(reason="tool_error"):
            return {"halted_reason": "tool_error", "halt_tool_call_id": halt.tool_call_id, **halt.metadata}
        case ToolHalt():
            return {
                "halted_reason": halt.reason,
                "halt_tool_call_id": halt.tool_call_id,
                "halt_result": halt.result,
                **halt.metadata,
            }


def is_server(call: ToolCall) -> bool:
    """Whether the provider runs this call itself."""
    return bool(call.metadata.get("server"))


def is_incomplete(call: ToolCall) -> bool:
    """Whether the stream ended before the call did."""
    return call.metadata.get("error") == "incomplete"


def fold_message(events: Iterable[Event]) -> Message:
    """The assistant's message that the events of one response say, its parts in the order of their first appearance.

    The content is plain text where one block of text, and then calls, is all there is. Where no event says anything, it
    is what the ``MessageCompleted`` holds.
    """
    metadata: dict[str, Any] = {}
    whole = Message("assistant")
    blocks = _Blocks()
    of_calls: list[Event] = []
    kind, block, pieces = None, None, list[str]()  # of the latest delta; nearly every event goes on where that one was
    for event in events:
        if isinstance(event, TextDelta | ThinkingDelta):
            if kind is not type(event) or event.id != block:
                kind, block = type(event), event.id
                pieces = blocks.pieces(kind, block)
            pieces.append(event.delta)
            continue
        if isinstance(event, ToolCallDelta):
            of_calls.append(event)
            continue
        kind = None
        match event:
            case TextCompleted():
                blocks.complete(TextDelta, event.id, TextPart(event.text))
            case ThinkingCompleted():
                data = None if event.provider_data is None else dict(event.provider_data)
                blocks.complete(ThinkingDelta, event.id, ThinkingPart(event.text, event.signature, data))
            case ToolCallStarted() | ToolCallCompleted():
                blocks.mark(event.id)
                of_calls.append(event)
            case SourceAdded():
                blocks.add(SourcePart(dict(event.source)))
            case FileAdded():
                blocks.add(FilePart(dict(event.file)))
            case RawChunk(data=ProviderPart()):
                blocks.add(event.data)
            case MessageStarted(message=message) | MessageCompleted(message=message):
                metadata |= message.metadata
                whole = message
            case _:
                pass
    completed = {event.id for event in of_calls if isinstance(event, ToolCallCompleted)}
    calls = {id: call for id, call in _fold_calls(of_calls).items() if id in completed}
    parts = tuple(part for part in blocks.parts() if not isinstance(part, ToolCallPart) or part.id in calls)
    if not parts and not calls:
        return replace(whole, metadata=metadata)
    return Message("assistant", _content(parts), whole.name, tool_calls=tuple(calls.values()), metadata=metadata)


class _Blocks:
    """The parts of a message while it is folded. A block is open until it is completed; the id None is the open one."""

    def __init__(self) -> None:
        self._parts: dict[Any, Part | list[str]] = {}  # by kind and id, in the order of appearance
        self._open: dict[type[Event], list[Any]] = {TextDelta: [], ThinkingDelta: []}

    def pieces(self, kind: type[Event], id: str | None) -> list[str]:
        """Where the deltas of this block go; nowhere, if it is complete."""
        pieces = self._parts[self._key(kind, id)]
        return pieces if isinstance(pieces, list) else []

    def complete(self, kind: type[Event], id: str | None, part: Part) -> None:
        key = self._key(kind, id)
        self._parts[key] = part
        if key in self._open[kind]:
            self._open[kind].remove(key)

    def mark(self, id: str) -> None:
        self._parts.setdefault((ToolCallPart, id), ToolCallPart(id))

    def add(self, part: Part) -> None:
        self._parts[len(self._parts)] = part

    def parts(self) -> tuple[Part, ...]:
        joined = ((key, "".join(held) if isinstance(held, list) else held) for key, held in self._parts.items())
        made = (held if not isinstance(held, str) else _part(key[0], held) for key, held in joined)
        return tuple(part for part in made if part != TextPart(""))

    def _key(self, kind: type[Event], id: str | None) -> Any:
        opened = self._open[kind]
        if id is None and opened:
            return opened[-1]
        key = (kind, len(self._parts) if id is None else id)
        if key not in self._parts:
            self._parts[key] = []
            opened.append(key)
        return key


def _part(kind: type[Event], text: str) -> Part:
    return TextPart(text) if kind is TextDelta else ThinkingPart(text)


def _content(parts: tuple[Part, ...]) -> str | tuple[Part, ...]:
    match parts:
        case (TextPart(text=text, metadata=metadata), *marks) if not metadata and _only_marks(marks):
            return text
        case marks if _only_marks(marks):
            return ""
        case _:
            return parts


def _only_marks(parts: Iterable[Part]) -> bool:
    return all(isinstance(part, ToolCallPart) for part in parts)


def _fold_calls(events: Iterable[Event]) -> dict[str, ToolCall]:
    """The calls by id, in the order of first appearance; of one that is not completed there is only the raw text."""
    calls: dict[str, ToolCallStarted | ToolCallCompleted | None] = {}
    pieces: dict[str, list[str]] = {}
    for event in events:
        match event:
            case ToolCallStarted():
                calls[event.id] = calls.get(event.id) or event
            case ToolCallDelta():
                calls.setdefault(event.id)
                pieces.setdefault(event.id, []).append(event.arguments_delta)
            case ToolCallCompleted():
                calls[event.id] = event
            case _:
                pass
    return {id: _call(id, event, pieces.get(id, [])) for id, event in calls.items()}


def _call(id: str, event: ToolCallStarted | ToolCallCompleted | None, pieces: list[str]) -> ToolCall:
    match event:
        case ToolCallCompleted():
            return event.tool_call
        case ToolCallStarted():
            return ToolCall(id, event.name, {}, "".join(pieces), dict(event.metadata))
        case None:
            return ToolCall(id, "", {}, "".join(pieces))


def _apply_to_rest(rest: Rest, event: Event) -> Rest:
    match event:
        case UsageUpdated(usage=usage):
            return msgspec.structs.replace(rest, usage=usage, fresh=False)
        case RawChunk(kind="usage", data=Mapping()):
            usage = Usage(**cast(Mapping[str, Any], event.data))
            return msgspec.structs.replace(rest, usage=usage, fresh=False)
        case ErrorEvent(error=error):
            return msgspec.structs.replace(rest, error=error, finish_reason="error", fresh=False)
        case ToolResultEncoded():
            return _with_result(rest, event.id, event.content)
        case ToolHalt():
            content = event.content if event.content is not None else str(event.result)
            return _with_result(_with_halt(rest, event), event.tool_call_id, content)
        case AskUserRequested():
            return _with_result(_with_halt(rest, event), event.tool_call_id, AWAITING_USER)
        case ChatCompleted(result=result):
            return msgspec.structs.replace(rest, chat_result=result)
        case _:
            return rest


def _complete(rest: Rest, event: MessageCompleted) -> Rest:
    return msgspec.structs.replace(
        rest,
        # An error is not forgotten because the adapter goes on after it.
        finish_reason="error" if rest.finish_reason == "error" else event.finish_reason or rest.finish_reason,
        raw_finish_reason=event.raw_finish_reason or rest.raw_finish_reason,
        metadata={**rest.metadata, **event.metadata},
    )


def _with_result(rest: Rest, id: str, content: str) -> Rest:
    message = Message("tool", content, tool_call_id=id)
    return msgspec.structs.replace(rest, tool_results=(*rest.tool_results, message), fresh=False)


def _with_halt(rest: Rest, event: ToolHalt | AskUserRequested) -> Rest:
    return rest if rest.halt is not None else msgspec.structs.replace(rest, halt=event)


def _next_step(rest: Rest, result: StepResult) -> Rest:
    return Rest(
        steps=(*rest.steps, result),
        error=rest.error,
        metadata=rest.metadata,
        chat_result=rest.chat_result,
        earlier=(rest.error, rest.metadata),
        fresh=True,
    )


def _same_step(rest: Rest) -> Rest:
    error, metadata = rest.earlier
    return Rest(steps=rest.steps, error=error, metadata=metadata, chat_result=rest.chat_result, earlier=rest.earlier)
