"""The events of a stream: a closed union of 28 frozen classes.

A ``match`` over `Event` can be exhaustive, so adding a class is a breaking change. Adding a field is not. All adapters
follow these rules:

1. A response begins with `MessageStarted` and ends with one `MessageCompleted` or one `ErrorEvent`.
2. A tool call consists of a `ToolCallStarted`, deltas and a `ToolCallCompleted`. Its id is unique in the thread.
3. A text or thinking block ends with a completion event before the next block or call begins. The completion event
   contains the whole text, so you can ignore the deltas.
4. Every open block is closed before an `ErrorEvent`. An unfinished call is completed with the ``metadata``
   ``{"error": "incomplete"}``. If the call's own tool ended the response, ``"vetoed": True`` is added to that
   metadata. The call then has a result, and contains only the arguments that were complete when the tool started.
   Arguments that the tool received as streams are left out.
5. The same bytes always produce equal events, no matter how they are split into reads.

Each block's `id` is unique within its response. It is the provider's id, or ``block_0``, ``block_1`` and so on. rxllm
fills in ids that an adapter leaves out. In old recordings, an id can be None. The event then belongs to the latest
open block of its kind or, if no such block is open, to a new block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import msgspec

from rxllm.values import (
    AdapterError,
    ChatResult,
    FinishReason,
    LLMError,
    Message,
    Part,
    ProviderPart,
    Response,
    StepResult,
    Thread,
    ToolCall,
    Usage,
)
from rxllm.values.advice import no_field

__all__ = [
    "AskUserRequested",
    "ChatCompleted",
    "Custom",
    "ErrorEvent",
    "Event",
    "FileAdded",
    "MessageCompleted",
    "MessageStarted",
    "Nested",
    "PartAdded",
    "RawChunk",
    "SourceAdded",
    "Steered",
    "StepCompleted",
    "StepRestarted",
    "TextCompleted",
    "TextDelta",
    "ThinkingCompleted",
    "ThinkingDelta",
    "ToolApprovalRequested",
    "ToolCallCompleted",
    "ToolCallDelta",
    "ToolCallStarted",
    "ToolExecutionCompleted",
    "ToolExecutionStarted",
    "ToolHalt",
    "ToolProgress",
    "ToolResultEncoded",
    "UsageUpdated",
]

NOTHING: Mapping[str, Any] = {}

_RARE: Mapping[str, Any] = {"refusal": False, "estimated_tokens": None}
"""Fields that most events leave at these defaults. An event's repr has them only if they are set."""


class _Event(msgspec.Struct, frozen=True, tag_field="type"):
    if not TYPE_CHECKING:  # type checkers report unknown attributes themselves

        def __getattr__(self, name: str) -> Any:
            raise no_field(type(self), name)

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        shown = (f"{name}={value!r}" for name, value in values.items() if value is not _RARE.get(name, values))
        return f"{type(self).__name__}({', '.join(shown)})"


class MessageStarted(_Event, frozen=True, tag="message_started"):
    """The first frame has arrived. `message` is empty, but its metadata has the provider's ``id`` and ``model``."""

    message: Message


class TextDelta(_Event, frozen=True, gc=False, tag="text_delta"):
    """A piece of text. `refusal` is True if it belongs to a refusal, which OpenAI marks as such."""

    delta: str
    id: str | None = None
    refusal: bool = False


class TextCompleted(_Event, frozen=True, gc=False, tag="text_completed"):
    """A text block is complete. `text` is the text of the whole block. `refusal` is as in `TextDelta`."""

    text: str
    id: str | None = None
    refusal: bool = False


class ToolCallStarted(_Event, frozen=True, tag="tool_call_started"):
    """The model has started to call the tool `name`."""

    id: str
    name: str
    metadata: Mapping[str, Any] = NOTHING


class ToolCallDelta(_Event, frozen=True, gc=False, tag="tool_call_delta"):
    """A piece of a tool call's arguments, as JSON text."""

    id: str
    arguments_delta: str


class ToolCallCompleted(_Event, frozen=True, tag="tool_call_completed"):
    """A tool call is complete.

    If `raw_arguments` is not a JSON object, `arguments` is empty and ``metadata["error"]`` is set.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    raw_arguments: str
    metadata: Mapping[str, Any] = NOTHING

    @property
    def tool_call(self) -> ToolCall:
        """This call as a `ToolCall`."""
        return ToolCall(self.id, self.name, dict(self.arguments), self.raw_arguments, dict(self.metadata))


class MessageCompleted(_Event, frozen=True, tag="message_completed"):
    """The response is complete. `message` is the complete message."""

    message: Message
    finish_reason: FinishReason | None = None
    raw_finish_reason: str | None = None
    metadata: Mapping[str, Any] = NOTHING


class RawChunk(_Event, frozen=True, tag="raw_chunk"):
    """A frame exactly as the provider sent it.

    It is emitted if an option asks for raw frames, or if no other event can represent the frame. Earlier versions also
    used this event for usage and parts, which `current_form` converts to `UsageUpdated` and `PartAdded`.
    """

    kind: str
    data: Any


class ErrorEvent(_Event, frozen=True, tag="error"):
    """The stream failed midway. The events before this one remain valid."""

    error: LLMError


class ToolExecutionStarted(_Event, frozen=True, tag="tool_execution_started"):
    """A tool has started running."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class ToolExecutionCompleted(_Event, frozen=True, tag="tool_execution_completed"):
    """A tool has returned `result` or failed with `error`.

    `result` is the object that the tool returned. After a round trip through JSON, it is plain data, in which notes
    such as ``[image/png, 5000 bytes]`` stand for images and files; see `rxllm.serializer`.
    """

    id: str
    name: str
    result: Any = None
    error: LLMError | None = None


class ToolResultEncoded(_Event, frozen=True, tag="tool_result_encoded"):
    """A tool's result, as the model will see it.

    If the result contains images or files, they are in `parts`, together with its text. `content` then has a note such
    as ``[image/png, 5000 bytes]`` in place of each.
    """

    id: str
    content: str
    parts: tuple[Part, ...] = ()


class AskUserRequested(_Event, frozen=True, tag="ask_user_requested"):
    """A tool has ended the chat to ask the user a question."""

    tool_call_id: str
    tool_name: str
    question: str
    opts: Mapping[str, Any] = NOTHING


class ToolHalt(_Event, frozen=True, tag="tool_halt"):
    """A tool has ended the chat. `content` and `parts` are what the model would see for `result`."""

    tool_call_id: str
    reason: str
    result: Any = None
    content: str | None = None
    metadata: Mapping[str, Any] = NOTHING
    parts: tuple[Part, ...] = ()


class StepCompleted(_Event, frozen=True, tag="step_completed"):
    """A step and its tools have finished.

    The event contains the whole thread, including the system prompt. Do not send it to clients unfiltered.
    """

    result: StepResult

    @property
    def response(self) -> Response[Any]:
        return self.result.response

    @property
    def thread(self) -> Thread:
        return self.result.thread

    @property
    def mode(self) -> str:
        return self.result.metadata.get("mode", "auto")

    @property
    def manual_tool_calls(self) -> tuple[ToolCall, ...]:
        return self.result.metadata.get("manual_tool_calls", ())


class ChatCompleted(_Event, frozen=True, tag="chat_completed"):
    """The chat has ended.

    The event contains the whole thread, including the system prompt. Do not send it to clients unfiltered.

    If the chat has a `response_format`, `result` is what ``chat`` returns, with the parsed answer or the error.
    `unparsed` is then the result before the answer was parsed. Only the unparsed result is written to JSON, stored and
    sent to clients.
    """

    result: ChatResult
    unparsed: ChatResult | None = None


class ThinkingDelta(_Event, frozen=True, gc=False, tag="thinking_delta"):
    """A piece of the model's thinking.

    If the model thinks without showing its thoughts, `delta` is empty. `estimated_tokens` is then roughly the number of
    tokens since the previous event, or 0 if the provider does not say. The bill may differ.
    """

    delta: str
    id: str | None = None
    estimated_tokens: int | None = None


class ThinkingCompleted(_Event, frozen=True, tag="thinking_completed"):
    """A thinking block is complete. `signature` and `provider_data` are sent back to the provider unchanged."""

    text: str
    signature: str | None = None
    provider_data: Mapping[str, Any] | None = None
    id: str | None = None


class SourceAdded(_Event, frozen=True, tag="source_added"):
    """A citation, a grounding source or a search result."""

    source: Mapping[str, Any]


class FileAdded(_Event, frozen=True, tag="file_added"):
    """An image or audio file that the model generated."""

    file: Mapping[str, Any]


class PartAdded(_Event, frozen=True, tag="part_added"):
    """A message part that only the provider understands.

    An example is the result of a tool that the provider runs.
    """

    part: ProviderPart


class UsageUpdated(_Event, frozen=True, tag="usage_updated"):
    """The response's usage so far. Each `UsageUpdated` replaces the one before it."""

    usage: Usage


class ToolProgress(_Event, frozen=True, tag="tool_progress"):
    """Progress reported by a running tool."""

    id: str
    name: str
    data: Any


class ToolApprovalRequested(_Event, frozen=True, tag="tool_approval_requested"):
    """A tool call is waiting for approval. If ``metadata["interrupted"]`` is set, the tool may already have run."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    metadata: Mapping[str, Any] = NOTHING


class StepRestarted(_Event, frozen=True, tag="step_restarted"):
    """The step is starting over. Ignore the events that the step has emitted so far."""

    reason: str
    attempt: int


class Custom(_Event, frozen=True, tag="custom"):
    """A custom event, defined by an operator or a tool."""

    name: str
    data: Any = None


class Nested(_Event, frozen=True, tag="nested"):
    """An event from an agent that is running as a tool.

    `path` contains the ids of the enclosing tool calls, outermost first. `event` is never a `Nested` itself. The ids in
    `event` are unique only within the agent's own thread.
    """

    path: tuple[str, ...]
    event: Any


class Steered(_Event, frozen=True, tag="steered"):
    """The user has sent a message to a running chat.

    The next step answers the message. `used` is False if the chat ended before that step.
    """

    message: Message
    used: bool = True


Event = (
    MessageStarted
    | TextDelta
    | TextCompleted
    | ToolCallStarted
    | ToolCallDelta
    | ToolCallCompleted
    | MessageCompleted
    | RawChunk
    | ErrorEvent
    | ToolExecutionStarted
    | ToolExecutionCompleted
    | ToolResultEncoded
    | AskUserRequested
    | ToolHalt
    | StepCompleted
    | ChatCompleted
    | ThinkingDelta
    | ThinkingCompleted
    | SourceAdded
    | FileAdded
    | UsageUpdated
    | ToolProgress
    | ToolApprovalRequested
    | StepRestarted
    | Custom
    | Nested
    | Steered
    | PartAdded
)

E = TypeVar("E", bound=Event)

EVENT_CLASSES: tuple[type[Event], ...] = get_args(Event)

EVENT_TAGS: dict[str, type[Event]] = {str(cls.__struct_config__.tag): cls for cls in EVENT_CLASSES}


_PINGS = frozenset({UsageUpdated, RawChunk})
"""Events that may arrive even while the model is silent."""

_NO_CONTENT = frozenset({MessageStarted, MessageCompleted, ErrorEvent, *_PINGS})


def is_content(event: Event) -> bool:
    """Return whether `event` counts as model output.

    Output restarts the idle timer, and the first output counts as the first token. All events of an agent are output,
    except usage updates and raw chunks.
    """
    silent = _NO_CONTENT
    if type(event) is Nested:
        event, silent = event.event, _PINGS
    return type(event) not in silent


def is_prelude(event: Event) -> bool:
    """Return whether a call can still be retried after `event`.

    An unknown frame may contain content, so a call cannot be retried after one.
    """
    return isinstance(event, MessageStarted | UsageUpdated)


def shows_nothing(event: Event) -> bool:
    """Return whether the answer may still turn out to be a refusal that has shown the user nothing else.

    Hidden thinking shows nothing, and neither does a refusal's own text.
    """
    match event:
        case (
            TextDelta(refusal=True) | TextCompleted(refusal=True) | ThinkingDelta(delta="") | ThinkingCompleted(text="")
        ):
            return True
        case _:
            return is_prelude(event)


REFUSED = "the model refused to answer, or a filter stopped its answer"


def failure_of(event: Event) -> LLMError | None:
    """Return the error of an ``ErrorEvent``, or the error that stands for a refused answer, or None.

    On every wire, a refusal is an answer with the finish reason ``content_filter``. Its error is an
    ``AdapterError("content_filter")``, as if the provider had refused the request.
    """
    match event:
        case ErrorEvent(error=error):
            return error
        case MessageCompleted(finish_reason="content_filter", raw_finish_reason=raw, metadata=metadata):
            return AdapterError("content_filter", REFUSED, code=raw, metadata=metadata)
        case _:
            return None


def is_refusal(error: object) -> bool:
    """Return whether `error` means that the model refused to answer, or that a filter stopped the request or answer."""
    return isinstance(error, AdapterError) and error.reason == "content_filter"


def with_text(event: TextDelta | ThinkingDelta, text: str) -> TextDelta | ThinkingDelta:
    """Return a delta with another text, in the same block as `event`."""
    return TextDelta(text, event.id, event.refusal) if type(event) is TextDelta else ThinkingDelta(text, event.id)


def unparsed(event: Event) -> Event:
    """Return `event` without its parsed answer, if it is a `ChatCompleted` that has one."""
    if type(event) is ChatCompleted and event.unparsed is not None:
        return ChatCompleted(event.unparsed)
    return event


def current_form(event: Event) -> Event:
    """Convert an obsolete ``RawChunk``, or return `event` unchanged.

    >>> current_form(RawChunk("usage", {"input_tokens": 3}))
    UsageUpdated(usage=Usage(input_tokens=3))

    A ``RawChunk`` inside a ``Nested`` is also converted. rxllm itself converts every obsolete chunk that an adapter
    emits, or that is read from JSON or folded.

    Raises ``TypeError`` if the chunk contains counters that `Usage` does not have.
    """
    match event:
        case RawChunk(data=ProviderPart() as part):
            return PartAdded(part)
        case RawChunk(kind="usage", data=Mapping()):
            return UsageUpdated(Usage(**cast(Mapping[str, Any], event.data)))
        case Nested(event=RawChunk() as chunk):
            return Nested(event.path, current_form(chunk))
        case _:
            return event
