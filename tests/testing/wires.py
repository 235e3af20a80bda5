"""How each provider says what a `Script` says, in its own bytes."""

from __future__ import annotations

from typing import Any

import msgspec

from rxllm import Anthropic, Gemini, Local, Ollama, OpenAIChat, OpenAIResponses
from rxllm.adapters.local.server import Server
from rxllm.testing import HTTPAdapterConformance, Script, refusal
from rxllm.testing.loopback import DONE, Reply, chat_chunk, chat_event, chat_finish
from rxllm.values import AdapterError, ToolCall, Usage


def raw(call: ToolCall) -> str:
    return msgspec.json.encode(call.arguments).decode()


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def sse(data: Any, event: str | None = None) -> bytes:
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def counted(usage: Usage, input_name: str, output_name: str) -> dict[str, Any]:
    """The usage under the provider's own names."""
    return {input_name: usage.input_tokens, output_name: usage.output_tokens}


OPENAI_CODES = {
    "authentication_failed": ("invalid_request_error", "invalid_api_key"),
    "rate_limited": ("requests", "rate_limit_exceeded"),
    "invalid_request": ("invalid_request_error", "unknown_parameter"),
    "context_length_exceeded": ("invalid_request_error", "context_length_exceeded"),
    "content_filter": ("invalid_request_error", "content_policy_violation"),
    "provider_unavailable": ("server_error", "server_error"),
}


class _Conformance(HTTPAdapterConformance):
    silence = 0.5


class OpenAIChatWire(_Conformance):
    def adapter(self, url: str, **connection: Any) -> Any:
        return OpenAIChat(base_url=url, **connection)

    def said(self, script: Script) -> list[bytes]:
        frames = [chat_event({"role": "assistant", "content": ""})]
        frames += [chat_event({"reasoning_content": piece}) for piece in script.thinking]
        frames += map(chat_chunk, script.texts)
        for index, call in enumerate(script.calls):
            begun = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name}}
            frames.append(chat_event({"tool_calls": [begun]}))
            for piece in halves(raw(call)):
                frames.append(chat_event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
        return frames

    def ended(self, script: Script) -> list[bytes]:
        used = script.usage and counted(script.usage, "prompt_tokens", "completion_tokens")
        return [chat_finish(script.finish_reason, **({"usage": used} if used else {})), DONE]

    def failed(self, error: AdapterError) -> list[bytes]:
        return [sse(self.body(error))]

    def refused(self, error: AdapterError) -> Reply:
        return refusal(error, self.body(error))

    def body(self, error: AdapterError) -> Any:
        kind, code = OPENAI_CODES[error.reason]
        return {"error": {"message": error.message, "type": kind, "param": None, "code": code}}


class LocalWire(OpenAIChatWire):
    """llama.cpp's own server speaks the same; this one is elsewhere."""

    without = {"sends_key": "a server on this machine asks for none"}  # noqa: RUF012 as the base has it

    def adapter(self, url: str, **connection: Any) -> Any:
        local = Local()
        local._server, local.base_url = Server(url, knows_tools=True), url
        local._api_key = connection.get("api_key")  # it takes none
        return local


RESPONSES_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesWire(_Conformance):
    def adapter(self, url: str, **connection: Any) -> Any:
        return OpenAIResponses(base_url=url, **connection)

    def frame(self, kind: str, **data: Any) -> bytes:
        return sse({"type": kind, **data}, kind)

    def said(self, script: Script) -> list[bytes]:
        frames = [self.frame("response.created", response={"id": "r1", "model": "m", "status": "in_progress"})]
        first = int(bool(script.thinking))
        if script.thinking:
            frames += self.reasoning(script.thinking)
        if script.texts:
            frames += self.message(first, script.texts)
        for index, call in enumerate(script.calls, first + bool(script.texts)):
            frames += self.function(index, call)
        return frames

    def reasoning(self, thoughts: tuple[str, ...]) -> list[bytes]:
        place = {"output_index": 0, "item_id": "rs1", "summary_index": 0}
        summary = [{"type": "summary_text", "text": "".join(thoughts)}]
        item = {"type": "reasoning", "id": "rs1", "summary": []}
        deltas = [self.frame("response.reasoning_summary_text.delta", **place, delta=piece) for piece in thoughts]
        return [
            self.frame("response.output_item.added", output_index=0, item=item),
            *deltas,
            self.frame("response.output_item.done", output_index=0, item={**item, "summary": summary}),
        ]

    def message(self, index: int, texts: tuple[str, ...]) -> list[bytes]:
        part = {"type": "output_text", "text": "", "annotations": []}
        place = {"output_index": index, "item_id": "m1", "content_index": 0}
        whole = {"type": "message", "id": "m1", "role": "assistant", "content": [{**part, "text": "".join(texts)}]}
        return [
            self.frame("response.output_item.added", output_index=index, item={**whole, "content": []}),
            self.frame("response.content_part.added", **place, part=part),
            *(self.frame("response.output_text.delta", **place, delta=text) for text in texts),
            self.frame("response.output_text.done", **place, text="".join(texts)),
            self.frame("response.output_item.done", output_index=index, item=whole),
        ]

    def function(self, index: int, call: ToolCall) -> list[bytes]:
        item = {"type": "function_call", "id": f"fc_{index}", "call_id": call.id, "name": call.name, "arguments": ""}
        place = {"output_index": index, "item_id": item["id"]}
        return [
            self.frame("response.output_item.added", output_index=index, item=item),
            *(self.frame("response.function_call_arguments.delta", **place, delta=half) for half in halves(raw(call))),
            self.frame("response.function_call_arguments.done", **place, arguments=raw(call)),
            self.frame("response.output_item.done", output_index=index, item={**item, "arguments": raw(call)}),
        ]

    def ended(self, script: Script) -> list[bytes]:
        response: dict[str, Any] = {"id": "r1", "model": "m", "status": "completed"}
        if script.usage:
            response["usage"] = counted(script.usage, "input_tokens", "output_tokens")
        if script.finish_reason in RESPONSES_REASONS:
            response |= {
                "status": "incomplete",
                "incomplete_details": {"reason": RESPONSES_REASONS[script.finish_reason]},
            }
        return [self.frame(f"response.{response['status']}", response=response)]

    def failed(self, error: AdapterError) -> list[bytes]:
        code = OPENAI_CODES[error.reason][1]
        failure = {"id": "r1", "status": "failed", "error": {"code": code, "message": error.message}}
        return [self.frame("response.failed", response=failure)]

    def refused(self, error: AdapterError) -> Reply:
        kind, code = OPENAI_CODES[error.reason]
        return refusal(error, {"error": {"message": error.message, "type": kind, "param": None, "code": code}})


ANTHROPIC_CODES = {
    "authentication_failed": "authentication_error",
    "rate_limited": "rate_limit_error",
    "invalid_request": "invalid_request_error",
    "context_length_exceeded": "invalid_request_error",
    "content_filter": "invalid_request_error",
    "provider_unavailable": "overloaded_error",
}

ANTHROPIC_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}

ANTHROPIC_WORDS = {
    "context_length_exceeded": "prompt is too long: 200001 tokens > 200000 maximum",
    "content_filter": "Output blocked by content filtering policy",
}


class AnthropicWire(_Conformance):
    def adapter(self, url: str, **connection: Any) -> Any:
        return Anthropic(base_url=url, **connection)

    def frame(self, kind: str, **data: Any) -> bytes:
        return sse({"type": kind, **data}, kind)

    def said(self, script: Script) -> list[bytes]:
        message = {"id": "r1", "type": "message", "role": "assistant", "model": "m", "content": []}
        used = counted(script.usage or Usage(3, 9), "input_tokens", "output_tokens")
        frames = [self.frame("message_start", message={**message, "usage": {**used, "output_tokens": 1}})]
        first = int(bool(script.thinking))
        if script.thinking:
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in script.thinking]
            frames += self.block(0, {"type": "thinking", "thinking": ""}, deltas)
        if script.texts:
            deltas = [{"type": "text_delta", "text": text} for text in script.texts]
            frames += self.block(first, {"type": "text", "text": ""}, deltas)
        for index, call in enumerate(script.calls, first + bool(script.texts)):
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in halves(raw(call))]
            frames += self.block(index, {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, deltas)
        return frames

    def block(self, index: int, block: Any, deltas: list[Any]) -> list[bytes]:
        return [
            self.frame("content_block_start", index=index, content_block=block),
            *(self.frame("content_block_delta", index=index, delta=delta) for delta in deltas),
            self.frame("content_block_stop", index=index),
        ]

    def ended(self, script: Script) -> list[bytes]:
        delta = {"stop_reason": ANTHROPIC_REASONS[script.finish_reason], "stop_sequence": None}
        used = {"output_tokens": (script.usage or Usage(3, 9)).output_tokens}
        return [self.frame("message_delta", delta=delta, usage=used), self.frame("message_stop")]

    def failed(self, error: AdapterError) -> list[bytes]:
        return [sse(self.body(error), "error")]

    def refused(self, error: AdapterError) -> Reply:
        return refusal(error, self.body(error), 529 if error.reason == "provider_unavailable" else None)

    def body(self, error: AdapterError) -> Any:
        body = {"type": ANTHROPIC_CODES[error.reason], "message": ANTHROPIC_WORDS.get(error.reason, error.message)}
        return {"type": "error", "error": body, "request_id": error.request_id}


GEMINI_STATUSES = {
    "authentication_failed": (400, "INVALID_ARGUMENT"),
    "rate_limited": (429, "RESOURCE_EXHAUSTED"),
    "invalid_request": (400, "INVALID_ARGUMENT"),
    "context_length_exceeded": (400, "INVALID_ARGUMENT"),
    "content_filter": (400, "INVALID_ARGUMENT"),
    "provider_unavailable": (503, "UNAVAILABLE"),
}

GEMINI_REASONS = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}

GEMINI_WORDS = {
    "context_length_exceeded": "The input token count (1048577) exceeds the maximum number of tokens allowed.",
    "content_filter": "The input was flagged by the content filter.",
}


class GeminiWire(_Conformance):
    def adapter(self, url: str, **connection: Any) -> Any:
        return Gemini(base_url=url, **connection)

    def chunk(self, *parts: Any, **candidate: Any) -> bytes:
        content = {"role": "model", "parts": list(parts)}
        return self.answer_frame({"candidates": [{"content": content, **candidate}]})

    def answer_frame(self, data: Any) -> bytes:
        return sse({**data, "responseId": "r1", "modelVersion": "m"}).replace(b"\n", b"\r\n")

    def said(self, script: Script) -> list[bytes]:
        called = [{"id": call.id, "name": call.name, "args": call.arguments} for call in script.calls]
        thoughts = [self.chunk({"text": piece, "thought": True}) for piece in script.thinking]
        texts = [self.chunk({"text": text}) for text in script.texts]
        return [*thoughts, *texts, *(self.chunk({"functionCall": call}) for call in called)]

    def ended(self, script: Script) -> list[bytes]:
        end = [self.chunk({"text": ""}, finishReason=GEMINI_REASONS.get(script.finish_reason, "STOP"))]
        if script.usage is None:
            return end
        return [
            *end,
            self.answer_frame({"usageMetadata": counted(script.usage, "promptTokenCount", "candidatesTokenCount")}),
        ]

    def failed(self, error: AdapterError) -> list[bytes]:
        return [sse(self.body(error))]

    def refused(self, error: AdapterError) -> Reply:
        return refusal(error, self.body(error), GEMINI_STATUSES[error.reason][0])

    def body(self, error: AdapterError) -> Any:
        code, status = GEMINI_STATUSES[error.reason]
        body = {"code": code, "message": GEMINI_WORDS.get(error.reason, error.message), "status": status}
        if error.reason == "authentication_failed":
            info = "type.googleapis.com/google.rpc.ErrorInfo"
            body["details"] = [{"@type": info, "reason": "API_KEY_INVALID", "domain": "googleapis.com"}]
        return {"error": body}


OLLAMA_WORDS = {
    "context_length_exceeded": "input length exceeds the context length",
    "content_filter": "the content filter has refused this",
}


class OllamaWire(_Conformance):
    headers = {"Content-Type": "application/x-ndjson"}  # noqa: RUF012 as the base has it
    breaks = "provider_unavailable"  # a line has words and no code
    without = {"content_filter": "there is none"}  # noqa: RUF012

    def adapter(self, url: str, **connection: Any) -> Any:
        return Ollama(base_url=url, **connection)

    def line(self, message: Any, **more: Any) -> bytes:
        data = {"model": "m", "message": {"role": "assistant", "content": "", **message}, "done": False, **more}
        return msgspec.json.encode(data) + b"\n"

    def said(self, script: Script) -> list[bytes]:
        called = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in script.calls
        ]
        thoughts = [self.line({"thinking": piece}) for piece in script.thinking]
        texts = [self.line({"content": text}) for text in script.texts]
        return [*thoughts, *texts, *(self.line({"tool_calls": [call]}) for call in called)]

    def ended(self, script: Script) -> list[bytes]:
        reason = "length" if script.finish_reason == "length" else "stop"
        used = counted(script.usage or Usage(3, 9), "prompt_eval_count", "eval_count")
        return [self.line({}, done=True, done_reason=reason, **used)]

    def failed(self, error: AdapterError) -> list[bytes]:
        return [msgspec.json.encode({"error": error.message}) + b"\n"]

    def refused(self, error: AdapterError) -> Reply:
        return refusal(error, {"error": OLLAMA_WORDS.get(error.reason, error.message)})
