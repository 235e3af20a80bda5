"""The decoder for Chat Completions from OpenAI and the many compatible servers.

See https://platform.openai.com/docs/api-reference/chat-streaming. The rules are:

* Only choice 0 is read, or a lone choice, whatever its index: some servers count pieces or choices from 1. If the
  request asked for several (``n``), only choice 0 is.
* Some servers send the same thinking in several fields. Only the first of ``reasoning_content``, ``reasoning`` and
  ``reasoning_details`` is read.
* Spoken answers (``audio``) become text, and a file at the end of the answer.
* Thought signatures and the id of the sound are kept, so that they can be sent back.
* ``<think>...</think>`` at the beginning of the text is thinking, except at OpenAI.
* xAI sends an empty delta for each token of thinking that it does not show.
* Opaque ``reasoning_details``, such as signatures, are kept so that they can be sent back.
* A refusal becomes text, and the finish reason becomes ``content_filter``.
* Log-probabilities and other details become metadata.
* If a chunk in a stream has both ``delta`` and ``message``, only ``delta`` is read, because ``message`` repeats all the
  text so far. Azure's older "On Your Data" answers have ``messages`` instead.
* The text that is sent to a custom tool becomes ``{"input": ...}``.
* A tool that Groq runs (``executed_tools``) becomes a call with the metadata ``{"server": True}``.
* The stream ends at an error, at ``[DONE]``, or at a finish reason that means failure.
* A chunk of an unknown kind becomes a ``RawChunk``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.adapters._http_errors import provider_error
from rxllm.adapters._usage_and_metadata import (
    REFUSALS,
    add_verdicts,
    costs_beside,
    dicts,
    metadata_of,
    metadata_of_usage,
    text_of,
    to_usage,
)
from rxllm.adapters.openai_chat.frames import (
    CONTENT,
    USAGE,
    AzureMessage,
    CallDelta,
    Choice,
    Chunk,
    Custom,
    Delta,
    FirstChunk,
    audio_id_of,
    audio_of,
    azure_citations,
    executed_sources,
    file_of,
    signatures_of,
    texts_of,
    to_logprobs,
)
from rxllm.events import NOTHING
from rxllm.values import AdapterError, FinishReason, LLMError, Message, ProviderPart
from rxllm.values.json_text import json_text, read_json
from rxllm.values.usage import whole
from rxllm.wire.event_order import Blocks
from rxllm.wire.frames import FrameDecoder, raw_kind
from rxllm.wire.framing import SSEDecoder
from rxllm.wire.think_tags import ThinkTags
from rxllm.wire.tool_calls import CallTracker

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "complete": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    **REFUSALS,
    "error": "error",
    "network_error": "error",
    "insufficient_system_resource": "error",
}
_FAILURES = {"network_error": "network_error", "insufficient_system_resource": "provider_unavailable"}
"""The ``AdapterError`` reason for each finish reason that indicates a failure. The default is ``unknown``."""

_FIRST = msgspec.json.Decoder(FirstChunk)
_CHUNK = msgspec.json.Decoder(Chunk)
_EMPTY = Delta()
_EXECUTED = 1 << 20
"""The first index for calls that Groq runs, well above the index of any other call."""


class ChatDecoder(FrameDecoder):
    """Decodes one response. `n` is the number of choices that were asked for.

    `think_tags` says whether ``<think>...</think>`` at the beginning of the text is thinking.

    If `raw` is true, the decoder also emits ``RawChunk`` events.
    """

    content = CONTENT

    def __init__(
        self,
        *,
        provider: str = "openai",
        messages: Iterable[Message] = (),
        n: int = 1,
        think_tags: bool = False,
        raw: bool = False,
    ) -> None:
        self._sse = SSEDecoder()
        super().__init__(
            self._sse, Blocks(CallTracker.after(messages, in_turn=True)), _FIRST, provider=provider, raw=raw
        )
        self._n = n
        self._tags = ThinkTags() if think_tags else None
        self._usage: dict[str, Any] | None = None
        self._costs: dict[str, Any] = {}
        self._counted = self._costs  # the costs that the last usage event contained
        self._sources: set[str] = set()
        self._filters: dict[str, Any] = {}
        self._audio: dict[str, list[Any]] = {}
        self._inputs: dict[int | None, str | None] = {}  # the ids of the unfinished calls to custom tools, by index
        self._executed: dict[int, dict[str, Any]] = {}
        self._may_hide = provider == "xai"  # whether an empty delta is hidden thinking: only before the first content
        self._own: dict[str, Any] = {}  # the fields of the message that the next request must send back

    def read(self, kind: str, chunk: Chunk, frame: bytes, /) -> None:
        if type(chunk) is FirstChunk:
            self.blocks.start(id=chunk.id, model=chunk.model)
            self._note(msgspec.structs.asdict(chunk))
            if chunk.id and chunk.model:
                self._decode = _CHUNK.decode
        if self.raw:
            self.blocks.raw(raw_kind(kind), read_json(frame))
        if chunk.search_results or chunk.citations or chunk.venice_parameters:
            self._read_sources(chunk)
        choices = chunk.choices or ()
        ended: list[dict[str, Any]] = []  # the parsed choices, if one of them ends in this frame
        for place, choice in enumerate(choices):
            if choice.index and (self._n > 1 or len(choices) > 1):
                continue
            if choice.delta is not None and not (self._sse.is_json and choice.message is not None):
                self._read_delta(choice.delta)
                if self._may_hide and type(chunk) is Chunk:
                    self._may_hide = choice.delta == _EMPTY and not choice.finish_reason
                    self.blocks.thinking("", tokens=1 if self._may_hide else None)
            else:
                self._read_whole(choice)
            if choice.logprobs:
                for name, items in to_logprobs(choice.logprobs):
                    self.blocks.append(name, items)
            if choice.content_filter_results or choice.content_filter_result:
                self._read_filters(choice)
            if choice.finish_reason or choice.error:
                if not ended:
                    parsed = read_json(frame)
                    ended = dicts(parsed["choices"])
                    self._note(parsed)
                self._read_finish(choice, ended[place])
        if not chunk.choices:
            self._note(read_json(frame))
        if chunk.usage or chunk.x_groq or self._costs is not self._counted:
            self._read_usage(chunk.usage or (chunk.x_groq or {}).get("usage"))
        if chunk.error or kind == "error":
            self.fail(self.error_of(read_json(frame)))
        elif chunk.choices is None and not chunk.usage:
            self._read_unknown(kind, frame)

    def _read_finish(self, choice: Choice, whole_choice: dict[str, Any]) -> None:
        raw = choice.finish_reason or "error"
        reason = "error" if choice.error else FINISH_REASONS.get(raw.lower(), "other")
        failure = _failure(self.provider, raw, whole_choice) if reason == "error" else None
        self.blocks.finish(reason, raw, self.error_of({"error": choice.error}) if choice.error else failure)
        self._note(whole_choice, whole_choice.get("delta"), whole_choice.get("message"))

    def _note(self, *parts: Any) -> None:
        for part in parts:
            if found := metadata_of(part):
                self.blocks.note(found)
            if costs := costs_beside(part):
                self._costs = self._costs | costs

    def _read_filters(self, choice: Choice) -> None:
        verdicts: Any = choice.content_filter_results
        if isinstance(verdicts, dict):
            add_verdicts(self._filters, cast(dict[str, Any], verdicts))
            self.blocks.note({"content_filter_results": self._filters})
        if choice.content_filter_result:
            self.blocks.note({"content_filter_result": choice.content_filter_result})

    def _read_whole(self, choice: Choice) -> None:
        if choice.message is not None:
            self._read_delta(choice.message)
            self._whole = self._sse.is_json
        for message in choice.messages or ():
            self._read_message(message)
            self._whole = self._sse.is_json
        if choice.text:
            self._read_text(choice.text)

    def _read_message(self, message: AzureMessage) -> None:
        delta = message.delta or message
        if delta.role == "tool":
            for citation in azure_citations(delta.content):
                self._add_source(citation)
        elif delta.content != "[DONE]":  # "[DONE]" marks the end of the stream
            self._read_delta(delta)

    def _read_usage(self, usage: Any) -> None:
        if isinstance(usage, dict) and usage and usage != self._usage:
            self._usage = cast(dict[str, Any], usage)
            self.blocks.note(metadata_of_usage(self._usage))
        elif self._costs is self._counted:
            return
        self._counted = self._costs
        self.blocks.usage(to_usage(self._costs | (self._usage or {}), USAGE))

    def _read_unknown(self, kind: str, frame: bytes) -> None:
        data = read_json(frame)
        if data.get("object") == "error":
            self.fail(self.error_of(data))
        elif not self.raw and not data.keys() & {"choices", "object", "usage", "x_groq", "search_results", "citations"}:
            self.blocks.raw(raw_kind(kind), data)

    def _read_delta(self, delta: Delta) -> None:
        blocks = self.blocks
        thinking = None if delta.reasoning_encrypted else delta.reasoning_content or delta.reasoning
        if thinking:
            blocks.thinking(thinking)
        if delta.reasoning_details:
            self._read_details(delta.reasoning_details, is_repeated=bool(thinking))
        content = delta.content
        if content:
            if isinstance(content, str):
                self._read_text(content)
            elif isinstance(content, dict):  # Cloudflare sends JSON answers already parsed
                blocks.text(json_text(content))
            else:
                self._read_parts(content)
        if delta.tool_calls:
            self._flush_text()
            for call in delta.tool_calls:
                self._read_call(call)
        if delta.function_call and (delta.function_call.name or delta.function_call.arguments):
            blocks.call(0, None, delta.function_call.name, delta.function_call.arguments)
        if delta.refusal:
            blocks.refusal(delta.refusal)
        if delta.annotations or delta.images or delta.audio:
            self._read_attachments(delta)
        if delta.extra_content or delta.thought_signature:
            self._own |= signatures_of(delta)
        if delta.executed_tools:
            self._read_executed(delta.executed_tools)
        if delta.channel:
            blocks.note({"channel": delta.channel})

    def _read_text(self, text: str) -> None:
        if self._tags is None or self._tags.is_over:
            self.blocks.text(text)
        else:
            self._emit_text(self._tags.feed(text))

    def _flush_text(self) -> None:
        if self._tags is not None:
            self._emit_text(self._tags.flush())

    def _emit_text(self, pieces: Iterable[tuple[bool, str]]) -> None:
        for is_thinking, piece in pieces:
            (self.blocks.thinking if is_thinking else self.blocks.text)(piece)

    def _read_call(self, call: CallDelta) -> None:
        custom = call.custom
        if custom is not None and (call.function is None or custom.name or custom.input):  # Snowflake sends both
            self._read_input(call, custom)
        else:
            function, signed = call.function or call, signatures_of(call)
            own = {self.provider: signed} if signed else NOTHING
            self.blocks.call(call.index, call.id, function.name, function.arguments, own)

    def _read_input(self, call: CallDelta, custom: Custom) -> None:
        # Stream the free text as {"input": ...}.
        index, opening = call.index, ""
        if index not in self._inputs or call.id not in (None, "", self._inputs[index]):
            self._close_input(index)
            self._inputs[index] = call.id
            opening = '{"input":"'
        piece = opening + json_text(custom.input or "")[1:-1]
        self.blocks.call(index, call.id, custom.name, piece, {self.provider: {"type": "custom"}})

    def _close_input(self, index: int | None) -> None:
        if index in self._inputs:
            self.blocks.call(index, self._inputs.pop(index), None, '"}')

    def _read_executed(self, tools: list[dict[str, Any]]) -> None:
        for tool in tools:
            number = whole(tool.get("index")) or 0
            entry, index = self._executed.setdefault(number, {}), _EXECUTED + number
            if not entry:
                name = text_of(tool.get("name")) or text_of(tool.get("type")) or "tool"
                self.blocks.call(index, f"executed_{number}", name, None, {"server": True})
            if tool.get("arguments") and not entry.get("arguments"):
                self.blocks.call(index, None, None, text_of(tool["arguments"]))
                self.blocks.complete_call(index)
            entry |= {name: value for name, value in tool.items() if value is not None}
            for source in executed_sources(tool):
                self._add_source(source)

    def _read_details(self, details: list[dict[str, Any]], *, is_repeated: bool) -> None:
        for detail in details:
            signature = text_of(detail.get("signature"))
            if not is_repeated:
                self.blocks.thinking(text_of(detail.get("text")) or text_of(detail.get("summary")))
            if signature or detail.get("data"):
                opaque = {k: v for k, v in detail.items() if k not in ("text", "summary")}
                self.blocks.sign(signature, {"reasoning_details": [opaque]})
                self.blocks.close_block()

    def _read_parts(self, parts: list[dict[str, Any]]) -> None:
        for part in parts:
            match part:
                case {"type": "text", "text": str(text)}:
                    self.blocks.text(text)
                case {"type": "thinking", "thinking": str(text)}:
                    self.blocks.thinking(text)
                case {"type": "thinking", "thinking": list()}:
                    self.blocks.thinking(texts_of(part["thinking"]))
                case {"type": "image_url"}:
                    self.blocks.file(file_of(part))
                case {"type": "reference"}:
                    self.blocks.source(part)
                case _:
                    self.blocks.raw("content", part)

    def _read_attachments(self, delta: Delta) -> None:
        for annotation in delta.annotations or ():
            cited = annotation.get("url_citation")
            self._add_source({**annotation, **cited} if isinstance(cited, dict) else annotation)
        for image in delta.images or ():
            self.blocks.file(file_of(image))
        for name, value in (delta.audio or {}).items():
            if value:  # some servers send empty fields
                self._audio.setdefault(name, []).append(value)
            if name == "transcript":
                self.blocks.text(text_of(value))

    def _read_sources(self, chunk: Chunk) -> None:
        for result in chunk.search_results or ():
            self._add_source(result)
        found: Any = (chunk.venice_parameters or {}).get("web_search_citations")
        pages = cast(list[Any], found) if isinstance(found, list) else []
        for citation in (*(chunk.citations or ()), *pages):
            self._add_source({"url": citation} if isinstance(citation, str) else citation)

    def _add_source(self, source: Any) -> None:
        if not isinstance(source, dict):
            return
        fields = {k: v for k, v in cast(dict[str, Any], source).items() if k != "url_citation"}
        key = repr([fields.get("url") or fields, fields.get("start_index"), fields.get("end_index")])
        if key not in self._sources:
            self._sources.add(key)
            self.blocks.source(fields)

    def fail(self, error: LLMError) -> None:
        self._add_rest()
        super().fail(error)

    def end(self, *, over: bool) -> None:
        for index in [*self._inputs]:
            self._close_input(index)
        if self._executed:
            self.blocks.note({"executed_tools": [*self._executed.values()]})
        self._add_rest()
        super().end(over=over)

    def _add_rest(self) -> None:
        self._flush_text()
        if self._audio:
            self.blocks.file(audio_of(self._audio))
            self._own |= audio_id_of(self._audio)
            self._audio = {}
        if self._own:
            self.blocks.part(ProviderPart(self.provider, self._own))
            self._own = {}

    def error_of(self, payload: Any) -> AdapterError:
        return provider_error(self.provider, payload)


def _failure(provider: str, raw: str, choice: Mapping[str, Any]) -> AdapterError:
    # OpenRouter puts the provider's own reason into native_finish_reason.
    code = str(choice.get("native_finish_reason") or raw)
    message = f"the answer ended with {code}"
    return AdapterError(_FAILURES.get(raw.lower(), "unknown"), message, provider=provider, code=code)
