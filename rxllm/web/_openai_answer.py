"""A run as a Chat Completions answer, and the memory of runs that halt for the client's tools.

The client sees a single message in a single choice, however many steps the run has:

==================================  ====================================================================================
in the run                          the client sees
==================================  ====================================================================================
text and thinking of all steps      ``content`` and ``reasoning_content``, with a blank line between two steps
the same, in a structured answer    only the last step's, so that it is JSON; with tools it is sent when it is complete
sources with a URL                  ``annotations``
calls of the client's tools         ``tool_calls``
calls of the engine's own tools,    nothing
their results, inner agents
a question to the user              the question, as text; an inner agent's question is an error
usage                               the sum over all steps and agents
``StepRestarted``                   nothing; if a part of the step was sent, an error, since it cannot be withdrawn
files, log-probabilities            nothing
==================================  ====================================================================================

The finish reason is ``tool_calls`` if calls wait for the client, ``length`` or ``content_filter`` if the last step
ended with it, also ``length`` if the chat used up its turns or its budget, and otherwise ``stop``.

The client gets only its own calls, and sends back only these. The model's message had more: thinking whose signature
its provider requires, and calls of the engine's own tools, which must not run twice. So `Memory` keeps the run's
messages, and in the next request replaces the client's copy with them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Iterable

from reactivex import Subject
from reactivex.scheduler import CurrentThreadScheduler

from rxllm import ChatResult, Message, Nested, StreamError, Thread, ToolCall, Usage, serializer
from rxllm import events as ev
from rxllm import operators as ops
from rxllm.web._frames import Frame, frame_json
from rxllm.web._openai_errors import RefusedError
from rxllm.web._openai_request import Chat

MOST = 512
"""Maximum runs kept. A request whose run is not kept, perhaps in another process, is answered as it was sent."""


class Memory:
    """The messages of runs, keyed by the conversation and the calls that wait for the client.

    Call ids alone are not enough: some providers count them from 0. Any client that sends the same conversation with
    the same calls to the same model gets the kept messages.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, tuple[Message, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def restore(self, model: str, thread: Thread) -> Thread:
        """Return the client's `thread` with the messages of kept runs."""
        messages: list[Message] = []
        digest = hashlib.sha256(model.encode())
        for message in thread:
            kept = self._kept.get(_key(digest.digest(), message.tool_calls)) if message.tool_calls else None
            messages += kept or (message,)
            digest.update(serializer.to_json(message).encode())
        return Thread(messages)

    def keep(self, model: str, asked_for: Thread, restored: Thread, result: ChatResult) -> None:
        """Keep the messages that the run added to `restored`, the model's form of the client's thread `asked_for`."""
        if result.halted_reason != "manual_tool_calls":
            return
        digest = hashlib.sha256(model.encode())
        for message in asked_for:
            digest.update(serializer.to_json(message).encode())
        key = _key(digest.digest(), result.pending_tool_calls)
        self._kept[key] = result.thread.messages[len(restored) :]
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)


def _key(digest: bytes, calls: Iterable[ToolCall]) -> bytes:
    texts = sorted(json.dumps([call.id, call.name, call.arguments], sort_keys=True) for call in calls)
    return hashlib.sha256(digest + json.dumps(texts).encode()).digest()


_COUNTED = (ev.UsageUpdated, ev.StepCompleted, ev.StepRestarted, Nested)
_SOURCE = ("url", "title", "start_index", "end_index")


class Answer:
    """The chunks of one run; `holds` keeps them back until the chat has ended."""

    def __init__(self, id: str, chat: Chat, *, holds: bool) -> None:
        self.result: ChatResult | None = None
        self.error: Exception | None = None
        self.finish_reason = ""
        self.usage = Usage()  # the sum over all steps and their inner agents
        self._head: Frame = {"id": id, "created": int(time.time()), "model": chat.model}
        self._structured = chat.is_structured
        self._names = {tool.name for tool in chat.tools}
        self._with_usage = chat.include_usage
        self._holds = holds
        self._role: Frame = {"role": "assistant"}  # sent with the first delta
        self._deltas: list[Frame] = []  # the unsent deltas of this step
        self._earlier: list[Frame] = []  # the unsent deltas of earlier steps
        self._sent = False  # whether a delta of this step was sent
        self._open = set[type[ev.Event]]()  # the kinds of block with deltas so far
        self._cited = 0  # the number of sources so far
        self._has_text = False  # whether this step has text
        self._had_text = False  # whether an earlier step has text
        self._indexes: dict[str, int] = {}  # the indexes of the client's calls, by id
        self._unsent = set[str]()  # the calls without arguments so far
        self._counted = Subject[ev.Event]()
        at_once = CurrentThreadScheduler.singleton()
        self._counted.pipe(ops.usage()).subscribe(self._count, on_error=lambda _: None, scheduler=at_once)

    def feed(self, event: ev.Event) -> list[Frame]:
        """Return the chunks to send now. Sets `error` if the run has failed."""
        if isinstance(event, _COUNTED):
            self._counted.on_next(event)
        try:
            self._read(event)
        except RefusedError as refusal:
            self.error = refusal
        if self._holds or not self._deltas:
            return []
        deltas, self._deltas, self._sent = self._deltas, [], True
        return self._chunks(deltas)

    def chunk(self, delta: Frame | None, finish_reason: str | None = None) -> Frame:
        """Return a chunk. Without a `delta` it has no choice, like the usage chunk."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        choices = [] if delta is None else [choice]
        return {**self._head, "object": "chat.completion.chunk", "choices": choices}

    def last_chunks(self) -> list[Frame]:
        """Return the chunks that were held back, and the chunks that end the answer."""
        deltas = [*self._earlier, *self._deltas]
        if not deltas and self._role:
            deltas = [{"content": ""}]
        end = self.chunk({}, self.finish_reason)
        return [*self._chunks(deltas), end, *([self.usage_chunk()] if self._with_usage else [])]

    def usage_chunk(self) -> Frame:
        return {**self.chunk(None), "usage": _usage(self.usage)}

    def completion(self) -> Frame:
        """Return the whole answer, once the chat has ended."""
        message = _message([*self._earlier, *self._deltas])
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish_reason}
        usage = {"usage": _usage(self.usage)}
        return {**self._head, "object": "chat.completion", "choices": [choice], **usage}

    def _chunks(self, deltas: Iterable[Frame]) -> list[Frame]:
        chunks: list[Frame] = []
        for delta in deltas:
            chunks.append(self.chunk({**self._role, **delta}))
            self._role = {}
        return chunks

    def _count(self, usage: Usage) -> None:
        self.usage = usage

    def _read(self, event: ev.Event) -> None:
        match event:
            case ev.TextDelta(delta=text):
                self._open.add(ev.TextDelta)
                self._add_text(text)
            case ev.TextCompleted(text=text):
                self._add_text("" if ev.TextDelta in self._open else text)
                self._open.discard(ev.TextDelta)
            case ev.ThinkingDelta(delta=text):
                self._open.add(ev.ThinkingDelta)
                self._add({"reasoning_content": text})
            case ev.ThinkingCompleted(text=text):
                self._add({"reasoning_content": "" if ev.ThinkingDelta in self._open else text})
                self._open.discard(ev.ThinkingDelta)
            case ev.SourceAdded(source={"url": str()} as source):
                cited = {name: source[name] for name in _SOURCE if name in source}
                # OpenAI's package joins the lists in deltas by index.
                self._add({"annotations": [{"index": self._cited, "type": "url_citation", "url_citation": cited}]})
                self._cited += 1
            case ev.ToolCallStarted(id=id, name=name) if name in self._names and not event.metadata.get("server"):
                self._begin_call(id, name)
            case ev.ToolCallDelta(id=id, arguments_delta=text) if id in self._indexes and text:
                self._add_arguments(id, text)
            case ev.ToolCallCompleted(id=id) if id in self._unsent:
                self._add_arguments(id, _arguments_text(event.tool_call))
            case ev.StepRestarted():
                self._restart()
            case ev.MessageStarted():
                self._next_step()
            case ev.ChatCompleted(result=result):
                self._end(result)
            case _:
                pass

    def _add(self, delta: Frame) -> None:
        if any(delta.values()):
            self._deltas.append(delta)

    def _add_text(self, text: str) -> None:
        if text:
            is_next = self._had_text and not self._has_text and not self._structured
            self._has_text = True
            self._add({"content": f"\n\n{text}" if is_next else text})

    def _begin_call(self, id: str, name: str) -> None:
        self._indexes[id] = len(self._indexes)
        self._unsent.add(id)
        function = {"name": name, "arguments": ""}
        call = {"index": self._indexes[id], "id": id, "type": "function", "function": function}
        self._add({"tool_calls": [call]})

    def _add_arguments(self, id: str, text: str) -> None:
        self._unsent.discard(id)
        if text:
            self._add({"tool_calls": [{"index": self._indexes[id], "function": {"arguments": text}}]})

    def _restart(self) -> None:
        if self._sent:
            message = "the model restarted its answer after a part of it was sent; send the request without stream"
            raise RefusedError(502, message, "restarted")
        self._deltas.clear()
        self._indexes.clear()  # the client's calls end the chat, so all belong to this step
        self._unsent.clear()
        self._open.clear()
        self._has_text = False

    def _next_step(self) -> None:
        self._earlier = [] if self._structured else [*self._earlier, *self._deltas]
        self._deltas, self._sent = [], False
        self._had_text, self._has_text = self._had_text or self._has_text, False

    def _end(self, result: ChatResult) -> None:
        self.result = result
        if result.error is not None or result.halted_reason == "error":
            self.error = result.error or StreamError("unknown")
            return
        own = {call.id for call in result.final_response.tool_calls} if result.final_response else set[str]()
        waiting = {call.id for call in result.pending_tool_calls} | {result.pending_tool_call_id} - {None}
        if result.halted_reason == "approval" or waiting - own:
            message = "a tool of this server waits for an answer that Chat Completions cannot express"
            self.error = RefusedError(500, message, "approval_required")
            return
        if result.pending_question:
            self._had_text, self._has_text = self._had_text or self._has_text, False
            self._add_text(result.pending_question)
        for call in result.pending_tool_calls:
            if call.id not in self._indexes:  # a call to one of the engine's manual tools
                self._begin_call(call.id, call.name)
                self._add_arguments(call.id, _arguments_text(call))
        self.finish_reason = _finish_reason(result)


def _arguments_text(call: ToolCall) -> str:
    return frame_json(call.arguments).decode() if call.raw_arguments is None else call.raw_arguments


def _finish_reason(result: ChatResult) -> str:
    last = result.final_response and result.final_response.finish_reason
    if result.pending_tool_calls:
        return "tool_calls"
    if last in ("length", "content_filter"):
        return last
    return "length" if result.halted_reason in ("max_turns", "budget") else "stop"


def _message(deltas: list[Frame]) -> Frame:
    content, thinking = (
        "".join(delta[name] for delta in deltas if name in delta) for name in ("content", "reasoning_content")
    )
    annotations = [
        {"type": "url_citation", "url_citation": annotation["url_citation"]}
        for delta in deltas
        for annotation in delta.get("annotations", ())
    ]
    calls: dict[int, Frame] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        if "id" in call:
            calls[call["index"]] = {"id": call["id"], "type": "function", "function": dict(call["function"])}
        else:
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    more = {"reasoning_content": thinking, "annotations": annotations, "tool_calls": [*calls.values()]}
    known = {name: value for name, value in more.items() if value}
    return {"role": "assistant", "content": content or (None if calls else ""), "refusal": None, **known}


def _usage(usage: Usage) -> Frame:
    details: dict[str, Frame] = {
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_input_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "cost": {
            "input_tokens_cost": usage.input_cost,
            "output_tokens_cost": usage.output_cost,
            "total_cost": usage.total_cost,
        },
    }
    known = {
        name: {key: count for key, count in counts.items() if count is not None} for name, counts in details.items()
    }
    totals = {"prompt_tokens": usage.input_tokens or 0, "completion_tokens": usage.output_tokens or 0}
    return {**totals, "total_tokens": usage.total, **{name: counts for name, counts in known.items() if counts}}
