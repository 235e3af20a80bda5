"""The events of a stream: a closed union of 28 frozen classes.

Adding a class is a breaking change, adding a field is not; ``match`` over `Event` is exhaustive. Every adapter keeps
these rules:

1. `MessageStarted` first; then content; exactly one `MessageCompleted` or `ErrorEvent`, last.
2. Per tool call: `ToolCallStarted`, deltas, `ToolCallCompleted`. Ids are unique in the thread.
3. Every text and thinking block is closed by its completion before the next block or call begins. The completion
   repeats the joined deltas, so dropping deltas changes no result.
4. Before an `ErrorEvent`, every open block is closed; an unfinished call is completed with the ``metadata``
   ``{"error": "incomplete"}``.
5. The same bytes give equal events, no matter how the reads split them.

Blocks are distinguished by `id`, which is unique within a response: the provider's id, or ``block_0``, ``block_1``. An
adapter's event without an id receives one. Elsewhere, as in recordings, None means the latest open block of that kind,
or a new block if none is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import msgspec

from rxllm.values import (
    ChatResult,
    FinishReason,
    LLMError,
    Message,
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


class _Event(msgspec.Struct, frozen=True, tag_field="type"):
    if not TYPE_CHECKING:  # a type checker reports unknown attributes itself

        def __getattr__(self, name: str) -> Any:
            raise no_field(self, name, self.__struct_fields__)


class MessageStarted(_Event, frozen=True, tag="message_started"):
    """The first frame has arrived. `message` is empty, with the provider's ``id`` and ``model`` in its metadata."""

    message: Message


class TextDelta(_Event, frozen=True, gc=False, tag="text_delta"):
    """A piece of text."""

    delta: str
    id: str | None = None


class TextCompleted(_Event, frozen=True, gc=False, tag="text_completed"):
    """A block of text is complete; `text` is all of it."""

    text: str
    id: str | None = None


class ToolCallStarted(_Event, frozen=True, tag="tool_call_started"):
    """The model begins a call of the tool `name`."""

    id: str
    name: str
    metadata: Mapping[str, Any] = NOTHING


class ToolCallDelta(_Event, frozen=True, gc=False, tag="tool_call_delta"):
    """A piece of the JSON text of a call's arguments."""

    id: str
    arguments_delta: str


class ToolCallCompleted(_Event, frozen=True, tag="tool_call_completed"):
    """A call is complete. If its text is not a JSON object, `arguments` is empty and ``metadata["error"]`` is set."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    raw_arguments: str
    metadata: Mapping[str, Any] = NOTHING

    @property
    def tool_call(self) -> ToolCall:
        """The call as a value."""
        return ToolCall(self.id, self.name, dict(self.arguments), self.raw_arguments, dict(self.metadata))


class MessageCompleted(_Event, frozen=True, tag="message_completed"):
    """The response is complete; `message` is all of it."""

    message: Message
    finish_reason: FinishReason | None = None
    raw_finish_reason: str | None = None
    metadata: Mapping[str, Any] = NOTHING


class RawChunk(_Event, frozen=True, tag="raw_chunk"):
    """A frame as the provider sent it: requested by an option, or not covered by any other event.

    Two earlier forms are read as the events that replace them, see `current_form`: counters under the kind ``"usage"``
    are a `UsageUpdated`, and `data` that is a ``ProviderPart`` is a `PartAdded`.
    """

    kind: str
    data: Any


class ErrorEvent(_Event, frozen=True, tag="error"):
    """The stream has failed midway; the events before it stay valid."""

    error: LLMError


class ToolExecutionStarted(_Event, frozen=True, tag="tool_execution_started"):
    """A tool starts to run."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class ToolExecutionCompleted(_Event, frozen=True, tag="tool_execution_completed"):
    """A tool has run; it returned `result` or failed with `error`.

    `result` is the object that the tool returned; JSON stores it and returns it as plain data; see `rxllm.serializer`.
    """

    id: str
    name: str
    result: Any = None
    error: LLMError | None = None


class ToolResultEncoded(_Event, frozen=True, tag="tool_result_encoded"):
    """The tool's result as the model will see it."""

    id: str
    content: str


class AskUserRequested(_Event, frozen=True, tag="ask_user_requested"):
    """A tool ends the chat with a question to the user."""

    tool_call_id: str
    tool_name: str
    question: str
    opts: Mapping[str, Any] = NOTHING


class ToolHalt(_Event, frozen=True, tag="tool_halt"):
    """A tool ends the chat. `content` is `result` as the model would see it."""

    tool_call_id: str
    reason: str
    result: Any = None
    content: str | None = None
    metadata: Mapping[str, Any] = NOTHING


class StepCompleted(_Event, frozen=True, tag="step_completed"):
    """A step is over, including its tools. It holds the whole thread with the system prompt: do not forward it raw."""

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
    """The chat has halted. It holds the whole thread with the system prompt: do not forward it raw."""

    result: ChatResult


class ThinkingDelta(_Event, frozen=True, gc=False, tag="thinking_delta"):
    """A piece of the model's thinking."""

    delta: str
    id: str | None = None


class ThinkingCompleted(_Event, frozen=True, tag="thinking_completed"):
    """A block of thinking is complete. `signature` and `provider_data` go back to the provider unchanged."""

    text: str
    signature: str | None = None
    provider_data: Mapping[str, Any] | None = None
    id: str | None = None


class SourceAdded(_Event, frozen=True, tag="source_added"):
    """A citation, a grounding or a search result."""

    source: Mapping[str, Any]


class FileAdded(_Event, frozen=True, tag="file_added"):
    """An image or audio in the output."""

    file: Mapping[str, Any]


class PartAdded(_Event, frozen=True, tag="part_added"):
    """A part of the message that only its provider understands, such as the result of a tool that the provider runs."""

    part: ProviderPart


class UsageUpdated(_Event, frozen=True, tag="usage_updated"):
    """The usage of the response so far. It is cumulative, so the last one counts."""

    usage: Usage


class ToolProgress(_Event, frozen=True, tag="tool_progress"):
    """Progress that a running tool reports."""

    id: str
    name: str
    data: Any


class ToolApprovalRequested(_Event, frozen=True, tag="tool_approval_requested"):
    """A call waits for approval. With ``metadata["interrupted"]``, it may have run already."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    metadata: Mapping[str, Any] = NOTHING


class StepRestarted(_Event, frozen=True, tag="step_restarted"):
    """The step begins again; its earlier events are void."""

    reason: str
    attempt: int


class Custom(_Event, frozen=True, tag="custom"):
    """An operator's or a tool's own event."""

    name: str
    data: Any = None


class Nested(_Event, frozen=True, tag="nested"):
    """An event of an agent that runs as a tool.

    `path` has the ids of the tool calls around it, the outermost first; `event` is never a `Nested` itself. The ids in
    `event` are unique in the agent's own thread only.
    """

    path: tuple[str, ...]
    event: Any


class Steered(_Event, frozen=True, tag="steered"):
    """A user's message joins a running chat: the next step answers it. `used` is False if the chat ended first."""

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
"""Events that a provider sends while its model is silent."""

_NO_CONTENT = frozenset({MessageStarted, MessageCompleted, ErrorEvent, *_PINGS})


def is_content(event: Event) -> bool:
    """Whether `event` is model output, which ends a silence and counts as the first token.

    An agent's work is output too, and so are the starts and ends of its responses; its provider's pings are not.
    """
    silent = _NO_CONTENT
    if type(event) is Nested:
        event, silent = event.event, _PINGS
    return type(event) not in silent


def is_prelude(event: Event) -> bool:
    """Whether a call can still be retried after `event`: the consumer has not received anything to use.

    Unknown frames may be content, so they are not a prelude.
    """
    return isinstance(event, MessageStarted | UsageUpdated)


def current_form(event: Event) -> Event:
    """Return the event that replaces an earlier form of ``RawChunk``, also inside ``Nested``; others are unchanged.

    >>> current_form(RawChunk("usage", {"input_tokens": 3}))
    UsageUpdated(usage=Usage(input_tokens=3))

    Adapters' events are converted where they enter, JSON where it is read, and events of any origin where they are
    folded. Raises ``TypeError`` for counters that `Usage` does not have.
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
