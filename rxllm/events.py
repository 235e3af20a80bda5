"""What a stream is made of: a closed union of 25 frozen classes.

Adding a class is a breaking change, adding a field is not; ``match`` over `Event` is exhaustive. Every adapter keeps:

1. `MessageStarted` first; then content; exactly one `MessageCompleted` or `ErrorEvent`, last.
2. Per tool call: `ToolCallStarted`, deltas, `ToolCallCompleted`. Ids are unique in the thread.
3. Every text and thinking block is closed by its completion, which says the same as its deltas joined, before the next
   block or call begins; so dropping deltas changes no fold.
4. Before an `ErrorEvent`, what is open is closed; an unfinished call is completed with the ``metadata``
   ``{"error": "incomplete"}``.
5. The same bytes give equal events, however they are cut.

Blocks are told apart by `id`; None is the open block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import msgspec

from rxllm.values import (
    ChatResult,
    FinishReason,
    LLMError,
    Message,
    Response,
    StepResult,
    Thread,
    ToolCall,
    Usage,
)

NOTHING: Mapping[str, Any] = {}


class MessageStarted(msgspec.Struct, frozen=True, tag="message_started", tag_field="type"):
    """The first frame has come; `message` is the assistant's, empty, with the provider's ``id`` and ``model`` in its
    metadata.
    """

    message: Message


class TextDelta(msgspec.Struct, frozen=True, gc=False, tag="text_delta", tag_field="type"):
    """A piece of text."""

    delta: str
    id: str | None = None


class TextCompleted(msgspec.Struct, frozen=True, gc=False, tag="text_completed", tag_field="type"):
    """A block of text is complete: `text` is all of it."""

    text: str
    id: str | None = None


class ToolCallStarted(msgspec.Struct, frozen=True, tag="tool_call_started", tag_field="type"):
    """The model begins a call of the tool `name`."""

    id: str
    name: str
    metadata: Mapping[str, Any] = NOTHING


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False, tag="tool_call_delta", tag_field="type"):
    """A piece of the JSON text of a call's arguments."""

    id: str
    arguments_delta: str


class ToolCallCompleted(msgspec.Struct, frozen=True, tag="tool_call_completed", tag_field="type"):
    """A call is complete. Text that is no JSON object leaves `arguments` empty and names the fault in
    ``metadata["error"]``.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    raw_arguments: str
    metadata: Mapping[str, Any] = NOTHING

    @property
    def tool_call(self) -> ToolCall:
        """The call as a value."""
        return ToolCall(self.id, self.name, dict(self.arguments), self.raw_arguments, dict(self.metadata))


class MessageCompleted(msgspec.Struct, frozen=True, tag="message_completed", tag_field="type"):
    """The stream is known to be over. `message` is all that was said."""

    message: Message
    finish_reason: FinishReason | None = None
    raw_finish_reason: str | None = None
    metadata: Mapping[str, Any] = NOTHING


class RawChunk(msgspec.Struct, frozen=True, tag="raw_chunk", tag_field="type"):
    """A frame as the provider sent it: asked for, or one that no other event says.

    Two are folded, and pass every filter of raw chunks: the kind ``"usage"``, and a `data` that is a ``ProviderPart``
    (the result of a tool that the provider runs, say), which becomes a part of the message.
    """

    kind: str
    data: Any


class ErrorEvent(msgspec.Struct, frozen=True, tag="error", tag_field="type"):
    """The stream has failed on its way; what came before it stands."""

    error: LLMError


class ToolExecutionStarted(msgspec.Struct, frozen=True, tag="tool_execution_started", tag_field="type"):
    """A tool begins to run, now."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class ToolExecutionCompleted(msgspec.Struct, frozen=True, tag="tool_execution_completed", tag_field="type"):
    """A tool has run: what it returned, or how it failed."""

    id: str
    name: str
    result: Any = None
    error: LLMError | None = None


class ToolResultEncoded(msgspec.Struct, frozen=True, tag="tool_result_encoded", tag_field="type"):
    """What the model will be told of the tool's result."""

    id: str
    content: str


class AskUserRequested(msgspec.Struct, frozen=True, tag="ask_user_requested", tag_field="type"):
    """A tool ends the chat with a question to the user."""

    tool_call_id: str
    tool_name: str
    question: str
    opts: Mapping[str, Any] = NOTHING


class ToolHalt(msgspec.Struct, frozen=True, tag="tool_halt", tag_field="type"):
    """A tool ends the chat. `content` is what the model would be told of `result`."""

    tool_call_id: str
    reason: str
    result: Any = None
    content: str | None = None
    metadata: Mapping[str, Any] = NOTHING


class StepCompleted(msgspec.Struct, frozen=True, tag="step_completed", tag_field="type"):
    """A step is over, its tools included. It holds the whole thread, system prompt and all: do not forward it raw."""

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


class ChatCompleted(msgspec.Struct, frozen=True, tag="chat_completed", tag_field="type"):
    """The chat has halted. It holds the whole thread, system prompt and all: do not forward it raw."""

    result: ChatResult


class ThinkingDelta(msgspec.Struct, frozen=True, gc=False, tag="thinking_delta", tag_field="type"):
    """A piece of what the model thinks."""

    delta: str
    id: str | None = None


class ThinkingCompleted(msgspec.Struct, frozen=True, tag="thinking_completed", tag_field="type"):
    """A block of thinking is complete. `signature` and `provider_data` go back to the provider verbatim."""

    text: str
    signature: str | None = None
    provider_data: Mapping[str, Any] | None = None
    id: str | None = None


class SourceAdded(msgspec.Struct, frozen=True, tag="source_added", tag_field="type"):
    """A citation, a grounding or a search result."""

    source: Mapping[str, Any]


class FileAdded(msgspec.Struct, frozen=True, tag="file_added", tag_field="type"):
    """An image or a sound in the output."""

    file: Mapping[str, Any]


class UsageUpdated(msgspec.Struct, frozen=True, tag="usage_updated", tag_field="type"):
    """What the response has cost so far: cumulative, so the last one counts."""

    usage: Usage


class ToolProgress(msgspec.Struct, frozen=True, tag="tool_progress", tag_field="type"):
    """Something that a running tool has to say."""

    id: str
    name: str
    data: Any


class ToolApprovalRequested(msgspec.Struct, frozen=True, tag="tool_approval_requested", tag_field="type"):
    """A call waits for somebody's yes."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class StepRestarted(msgspec.Struct, frozen=True, tag="step_restarted", tag_field="type"):
    """The step begins again: what came before in it is void."""

    reason: str
    attempt: int


class Custom(msgspec.Struct, frozen=True, tag="custom", tag_field="type"):
    """An operator's or a tool's own event."""

    name: str
    data: Any = None


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
)

E = TypeVar("E", bound=Event)

EVENT_CLASSES: tuple[type[Event], ...] = get_args(Event)

EVENT_TAGS: dict[str, type[Event]] = {str(cls.__struct_config__.tag): cls for cls in EVENT_CLASSES}
