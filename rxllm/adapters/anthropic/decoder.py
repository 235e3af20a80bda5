"""The decoder for the Messages API of Anthropic and compatible servers.

See https://platform.claude.com/docs/en/build-with-claude/streaming. The rules are:

* Usage is cumulative. A counter in ``message_delta`` replaces the same counter in ``message_start``.
* The stream ends with ``message_stop`` or an error.
* Stop details and the container become metadata. The next request must name the container.
* A frame of an unknown type becomes a ``RawChunk``.
* A server that does not stream sends a single JSON document.

Each block begins with a start frame and ends with a stop frame. The start frame may contain the whole block.

=====================  ==============================================================================================
block                  events
=====================  ==============================================================================================
``text``               text, then a ``SourceAdded`` for each citation, even if the citation was sent before the text
``thinking``,          thinking; its signature or ciphertext is kept, so that the thinking can be sent back; a delta
``redacted_thinking``  with ``estimated_tokens`` is thinking that is not shown
``tool_use``           a tool call; if no delta contains arguments, those in the start frame are used
``server_tool_use``,   a tool call with the metadata ``{"server": True}``
``mcp_tool_use``
``fallback``           from here on, another model answers in place of one that refused: a message part, an entry of
                       ``fallbacks`` in the metadata, and another model in the message's; the calls before it are
                       incomplete, if the decoder expects `fallbacks`, so that they do not run
any other, such as a   a message part that is sent back unchanged; for search results, also a ``SourceAdded`` for
server tool's result   each page
=====================  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from rxllm.adapters._http_errors import provider_error
from rxllm.adapters._usage_and_metadata import REFUSALS, costs_beside, dicts, metadata_of, text_of
from rxllm.adapters.anthropic.bound_thoughts import KEY, Ledger
from rxllm.adapters.anthropic.frames import (
    CLIENT_CALL,
    CONTENT,
    SERVER_CALLS,
    THOUGHTS,
    Delta,
    Frame,
    MessageFrame,
    to_usage,
)
from rxllm.collector import FALLBACK
from rxllm.values import AdapterError, FinishReason, LLMError, Message, ProviderPart, StreamError
from rxllm.values.json_text import read_json
from rxllm.values.prefixes import PrefixReport
from rxllm.values.usage import whole
from rxllm.wire.event_order import Blocks
from rxllm.wire.frames import FrameDecoder, raw_kind
from rxllm.wire.framing import SSEDecoder
from rxllm.wire.tool_calls import CallTracker

FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    **REFUSALS,
    # After `pause_turn`, another request must be sent. After `compaction`, none is needed.
    "pause_turn": "other",
    "compaction": "other",
}

_FRAME = msgspec.json.Decoder(Frame)


class MessagesDecoder(FrameDecoder):
    """Decodes one response. If `raw` is true, the decoder also emits ``RawChunk`` events.

    `fallbacks` says that other models may answer if this one refuses. The arguments of the client's calls then arrive
    at the end of the message, since the calls of a model that refuses must not run. If the request has a `ledger`, the
    message remembers it.
    """

    content = CONTENT

    def __init__(
        self,
        *,
        provider: str = "anthropic",
        messages: Iterable[Message] = (),
        fallbacks: bool = False,
        raw: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        super().__init__(SSEDecoder(), Blocks(CallTracker.after(messages)), _FRAME, provider=provider, raw=raw)
        self._content = Content(self.blocks, provider, fallbacks=fallbacks)
        self._ledger = ledger
        self._transformations: list[dict[str, Any]] = []
        self._usage: dict[str, Any] = {}

    def read_unfit(self, kind: str, data: Any, frame: bytes) -> None:
        super().read_unfit(kind, data, frame)
        if isinstance(data, dict) and cast(dict[str, Any], data).get("type") == "error":
            self.fail(self.error_of(data))

    def read_plain(self, kind: str, text: str) -> None:
        if kind != "ping":
            super().read_plain(kind, text)

    def read(self, kind: str, frame: Frame, data: bytes, /) -> None:
        name = frame.type if frame.type and kind != "error" else kind
        if name == "content_block_delta" and frame.delta is not None and not self.raw:
            if not self._content.add(frame.index, frame.delta):
                self._read_unknown(name, frame, data)
        elif name != "ping":
            self._read_other(name, frame, data)

    def _read_other(self, name: str, frame: Frame, data: bytes) -> None:
        message = frame if frame.type == "message" else frame.message
        if message is not None:
            self.blocks.start(id=message.id, model=message.model)
            self.blocks.note(metadata_of({"provider": message.provider}))
        if self.raw:
            self.blocks.raw(raw_kind(name), read_json(data))
        match name:
            case "content_block_delta" if frame.delta is not None and self._content.add(frame.index, frame.delta):
                pass
            case "content_block_start" if frame.content_block is not None:
                self._content.start(frame.index, frame.content_block)
            case "content_block_stop":
                self._content.stop(frame.index)
            case "message_start" | "message" if message is not None:
                self._read_message(message)
                self._whole = message is frame
            case "message_delta":
                self._finish(frame, frame.delta)
                if frame.context_management:
                    self.blocks.note({"context_management": frame.context_management})
            case "message_stop":
                self.end(over=True)
            case _:
                self._read_unknown(name, frame, data)

    def _read_unknown(self, name: str, frame: Frame, data: bytes) -> None:
        payload = read_json(data)
        if name == "error" or frame.error:
            self.fail(self.error_of(payload))
        elif frame.delta is not None and self._content.add_unknown(frame.index, payload["delta"]):
            pass
        elif frame.delta is not None and frame.delta.partial_json:
            fault = f"arguments belong to no call: {frame.delta.partial_json[:80]}"
            self.fail(StreamError("malformed_event", fault, provider=self.provider))
        elif not self.raw:
            self.blocks.raw(raw_kind(name), payload)

    def _read_message(self, message: MessageFrame) -> None:
        for index, block in enumerate(message.content or ()):
            self._content.start(index, block)
            self._content.stop(index)
        self._finish(message, message)

    def _finish(self, frame: MessageFrame, end: MessageFrame | Delta | None) -> None:
        costs = costs_beside({"provider_metadata": frame.provider_metadata}) if frame.provider_metadata else {}
        counters = costs | {name: count for name, count in (frame.usage or {}).items() if self._counts(name, count)}
        if counters:
            self._usage |= counters
            self.blocks.usage(to_usage(self._usage))
            self.blocks.note(metadata_of(self._usage))
            for entry in dicts(self._usage.get("iterations")):
                if entry.get("type") == "fallback_message" and isinstance(entry.get("model"), str):
                    self.blocks.answered_by(entry["model"])
        if frame.input_transformations is not None:  # a second one comes from the model that a server fell back to
            self._transformations = dicts(frame.input_transformations)
            self.blocks.note({"input_transformations": frame.input_transformations})
        self.blocks.note(metadata_of(frame.diagnostics))
        if end is None:
            return
        if end.stop_reason:
            self.blocks.finish(FINISH_REASONS.get(end.stop_reason, "other"), end.stop_reason)
        details = {"stop_sequence": end.stop_sequence, "stop_details": end.stop_details, "container": end.container}
        self.blocks.note({name: value for name, value in details.items() if value})
        if end.container:
            self.blocks.start(**{f"{self.provider}_container": end.container.get("id")})

    def _counts(self, name: str, count: Any) -> bool:
        """Return whether `count` may replace the counter: no odd value replaces a number."""
        return type(count) is int or (count is not None and whole(self._usage.get(name)) is None)

    def fail(self, error: LLMError) -> None:
        self._content.flush()
        super().fail(error)

    def end(self, *, over: bool) -> None:
        self._content.flush()
        if self._ledger is not None and self.blocks.started:
            drops = (entry for entry in self._transformations if entry.get("type") == "thinking_dropped")
            dropped = [text_of(entry.get("path")) for entry in drops]
            self.blocks.start(**{KEY: self._ledger.entry(self._content.thoughts, dropped)})
            self.blocks.note({"prefix": self._ledger.report} if self._ledger.report != PrefixReport() else {})
        super().end(over=over)

    def error_of(self, payload: Any) -> AdapterError:
        return use_type_as_code(provider_error(self.provider, payload))


def use_type_as_code(error: AdapterError) -> AdapterError:
    """If the error has no code, use its Anthropic type as the code.

    See https://platform.claude.com/docs/en/api/errors.
    """
    code = error.metadata.get("type")
    if error.code is None and isinstance(code, str) and code != "error":
        error.code = code
        error.metadata = {name: value for name, value in error.metadata.items() if name != "type"}
    return error


class _Block:
    """A block that has not ended yet. If it is a tool call, `position` is the index of the call."""

    __slots__ = ("citations", "data", "filled", "kind", "position", "signature")

    def __init__(self, kind: str, data: dict[str, Any]) -> None:
        self.kind = kind
        self.data = data
        self.position: int | None = None
        self.signature = ""
        self.filled = False  # True once a delta with arguments has arrived
        self.citations: list[Any] = []

    @property
    def is_opaque(self) -> bool:
        return self.position is None and self.kind != "text" and self.kind not in THOUGHTS


class Content:
    """Converts the content blocks of one message to events."""

    def __init__(self, blocks: Blocks, provider: str, *, fallbacks: bool = False) -> None:
        self._blocks = blocks
        self._provider = provider
        self._fallbacks = fallbacks
        self._held: list[tuple[int | None, Any]] = []  # the arguments of calls that may be a refusing model's
        self._open: dict[int, _Block] = {}
        self._open_calls: dict[int, _Block] = {}
        self._calls = 0
        self.thoughts: list[str] = []
        """The signatures of the thoughts that are complete."""

    def start(self, index: int | None, data: dict[str, Any]) -> None:
        if index is None or index in self._open:
            self.stop(index)
        self._blocks.close_block()
        kind = str(data.get("type"))
        place = -1 if index is None else index
        block = self._open[place] = _Block(kind, data)
        match kind:
            case "text":
                self._blocks.text(text_of(data.get("text")))
                block.citations += dicts(data.get("citations"))
            case "thinking":
                self._blocks.thinking(text_of(data.get("thinking")))
                self._sign(block, text_of(data.get("signature")))
            case "redacted_thinking":
                block.signature = text_of(data.get("data"))
                self._blocks.sign(None, {"provider": self._provider, **data})
            case _ if kind == CLIENT_CALL or kind in SERVER_CALLS:
                block.position, self._calls = self._calls, self._calls + 1
                self._open_calls[place] = block
                metadata = self._metadata(kind, data)
                self._blocks.call(block.position, text_of(data.get("id")), data.get("name"), None, metadata)
            case _ if kind == FALLBACK:
                self._hand_over(data)
            case _:
                pass

    def _add_arguments(self, call: _Block, arguments: Any) -> None:
        if self._is_held(call):
            self._held.append((call.position, arguments))
        else:
            self._blocks.call(call.position, None, None, arguments)

    def _is_held(self, call: _Block) -> bool:
        """Return whether the call waits for the end of the message, so that no tool starts early."""
        return self._fallbacks and call.kind == CLIENT_CALL

    def _hand_over(self, data: dict[str, Any]) -> None:
        self._held = []
        self._blocks.drop_calls()
        self._blocks.append("fallbacks", [{name: value for name, value in data.items() if name != "type"}])
        match data.get("to"):
            case {"model": str(model)}:
                self._blocks.answered_by(model)
            case _:
                pass

    def _place(self, index: int | None) -> int:
        """Return the key of the block with this `index`, or of the last one that is open, if a frame names none."""
        return next(reversed(self._open), -1) if index is None else index

    def _call(self, index: int | None) -> _Block | None:
        """Return the open call with this `index`, or else the last one: some servers count in another way."""
        block = self._open.get(self._place(index))
        if block is None or block.kind == "text" or block.kind in THOUGHTS:
            block = next(reversed(self._open_calls.values()), None)
        return block if block is not None and block.position is not None else None

    def add(self, index: int | None, delta: Delta) -> bool:
        """Add a delta to its block. Return False if the delta is of an unknown kind, or does not fit its block."""
        if delta.text is not None:
            self._blocks.text(delta.text)
        elif delta.thinking is not None or delta.estimated_tokens is not msgspec.UNSET:
            tokens = None if delta.estimated_tokens is msgspec.UNSET else max(whole(delta.estimated_tokens) or 0, 0)
            self._blocks.thinking(delta.thinking or "", tokens=tokens)
        elif delta.signature is not None:
            self._sign(self._open.get(self._place(index)), delta.signature)
        elif delta.partial_json is not None and (call := self._call(index)) is not None:
            call.filled = call.filled or bool(delta.partial_json)
            self._add_arguments(call, delta.partial_json)
        elif (block := self._open.get(self._place(index))) is None:
            return False
        elif delta.citation is not None:
            block.citations.append(delta.citation)
        else:
            return False
        return True

    def add_unknown(self, index: int | None, delta: dict[str, Any]) -> bool:
        block = self._open.get(self._place(index))
        if block is None or not block.is_opaque:
            return False
        block.data |= {name: value for name, value in delta.items() if name != "type"}
        return True

    def stop(self, index: int | None) -> None:
        place = self._place(index)
        block = self._open.pop(place, None)
        self._open_calls.pop(place, None)
        self._blocks.close_block()
        if block is not None:
            self._add_rest(block)
            if block.position is not None and not self._is_held(block):
                self._blocks.complete_call(block.position)

    def flush(self) -> None:
        """Close the blocks that are still open, and emit the rest of their content."""
        for block in self._open.values():
            self._blocks.close_block()
            self._add_rest(block)
        self._open, self._open_calls = {}, {}
        for position, arguments in self._held:
            self._blocks.call(position, None, None, arguments)
        self._held = []

    def _sign(self, block: _Block | None, signature: str) -> None:
        if signature:
            if block is not None:
                block.signature = signature
            self._blocks.sign(signature, {"provider": self._provider, "type": "thinking"})

    def _metadata(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        # Keep the provider's own fields, because they must be sent back.
        own = {k: v for k, v in data.items() if k not in ("type", "id", "name", "input") and v is not None}
        if own.get("caller") == {"type": "direct"}:
            del own["caller"]
        if kind == CLIENT_CALL:
            return {self._provider: own} if own else {}
        return {"server": True, self._provider: {"type": kind, **own}}

    def _add_rest(self, block: _Block) -> None:
        if block.signature:
            self.thoughts.append(block.signature)
        if block.position is not None and not block.filled and block.data.get("input"):
            self._add_arguments(block, block.data["input"])
        for citation in block.citations:
            self._blocks.source(citation)
        if block.is_opaque:
            self._blocks.part(ProviderPart(self._provider, block.data))
            for source in _pages(block.data.get("content")):
                self._blocks.source(source)


def _pages(content: Any) -> Iterable[dict[str, Any]]:
    # The text of a page is left out, because the message part already contains it.
    for page in dicts(content if isinstance(content, list) else [content]):
        if isinstance(page.get("url"), str):
            yield {k: v for k, v in page.items() if k not in ("encrypted_content", "content") and v is not None}
