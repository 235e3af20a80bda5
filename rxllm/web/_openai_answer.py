"""Present a run as a Chat Completions answer.

The client sees a single message, however many steps the run takes:

==================================  ====================================================================================
in the run                          what the client sees
==================================  ====================================================================================
text and thinking                   ``content`` and ``reasoning_content``, with a blank line between steps
text and thinking, if the answer    only the text and thinking of the last step, so that the content is valid JSON; with
is structured                       tools, nothing is sent until the answer is complete
sources with a URL                  ``annotations``
calls to the client's tools         ``tool_calls``
calls to the engine's own tools,    nothing
their results, inner agents
a question to the user              the question, as text; an error if an inner agent asks it
usage                               the total for all steps and agents
``StepRestarted``                   nothing, or an error if part of the step has already been sent
files, log-probabilities            nothing
==================================  ====================================================================================

The client receives the first finish reason that applies:

* ``tool_calls`` if the client has calls to run

* the last step's reason if it is ``length`` or ``content_filter``

* ``length`` if the chat has used up its turns or budget

* ``stop``

The client sends back only the calls to its own tools. But the model's message can also contain signed thinking, which
the provider needs, and calls to the engine's own tools, which must not run twice. So `Memory` keeps the run's messages,
and restores them in the next request.
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
"""The number of runs whose messages `Memory` keeps. For older runs, the messages that the client sends are used."""


class Memory:
    """Keeps the messages of runs that wait for the client's tools.

    The key of a run's messages is a hash of the model's name, the conversation and the calls to the client's tools. Ids
    alone would not be enough, because some providers number their calls from 0. Any client that sends the same model
    name, conversation and calls gets the stored messages.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, tuple[Message, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def restore(self, model: str, thread: Thread) -> Thread:
        """Return `thread` with the full messages of earlier runs restored."""
        messages: list[Message] = []
        digest = hashlib.sha256(model.encode())
        for message in thread:
            kept = self._kept.get(_key(digest.digest(), message.tool_calls)) if message.tool_calls else None
            messages += kept or (message,)
            digest.update(serializer.to_json(message).encode())
        return Thread(messages)

    def keep(self, model: str, asked_for: Thread, restored: Thread, result: ChatResult) -> None:
        """Keep the messages of a run if it is waiting for the client's tools.

        `asked_for` is the thread that the client sent. `restored` is the thread that the model received.
        """
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
    """Turns a run's events into chunks.

    If `holds` is true, no chunk is sent until the chat has ended. `usage` is the total for all steps and inner agents.
    """

    def __init__(self, id: str, chat: Chat, *, holds: bool) -> None:
        self.result: ChatResult | None = None
        self.error: Exception | None = None
        self.finish_reason = ""
        self.usage = Usage()
        self._head: Frame = {"id": id, "created": int(time.time()), "model": chat.model}
        self._structured = chat.is_structured
        self._names = {tool.name for tool in chat.tools}
        self._with_usage = chat.include_usage
        self._holds = holds
        # The role is sent with the first delta. `_deltas` and `_earlier` hold deltas that have not been sent yet.
        self._role: Frame = {"role": "assistant"}
        self._deltas: list[Frame] = []
        self._earlier: list[Frame] = []
        self._sent = False
        # The delta class of each open block, and the number of sources cited so far.
        self._open = set[type[ev.Event]]()
        self._cited = 0
        # Whether this step has text, and whether an earlier step had any.
        self._has_text = False
        self._had_text = False
        # The index of each call to a client tool, and the ids of the calls whose arguments have not been sent.
        self._indexes: dict[str, int] = {}
        self._unsent = set[str]()
        self._counted = Subject[ev.Event]()
        at_once = CurrentThreadScheduler.singleton()
        self._counted.pipe(ops.usage()).subscribe(self._count, on_error=lambda _: None, scheduler=at_once)

    def feed(self, event: ev.Event) -> list[Frame]:
        """Return the chunks to send now. If the run has failed, this method sets `error`."""
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
        """Return a chunk that contains `delta`.

        If `delta` is None, return a chunk that has no choices, to which the usage can be added.
        """
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        choices = [] if delta is None else [choice]
        return {**self._head, "object": "chat.completion.chunk", "choices": choices}

    def last_chunks(self) -> list[Frame]:
        """Return the chunks that were held back, followed by those that end the answer."""
        deltas = [*self._earlier, *self._deltas]
        if not deltas and self._role:
            deltas = [{"content": ""}]
        end = self.chunk({}, self.finish_reason)
        return [*self._chunks(deltas), end, *([self.usage_chunk()] if self._with_usage else [])]

    def usage_chunk(self) -> Frame:
        return {**self.chunk(None), "usage": _usage(self.usage)}

    def completion(self) -> Frame:
        """Return the whole answer. The chat must have ended."""
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
            case ev.ThinkingDelta(delta=text) if text:
                self._open.add(ev.ThinkingDelta)
                self._add({"reasoning_content": text})
            case ev.ThinkingCompleted(text=text):
                self._add({"reasoning_content": "" if ev.ThinkingDelta in self._open else text})
                self._open.discard(ev.ThinkingDelta)
            case ev.SourceAdded(source={"url": str()} as source):
                cited = {name: source[name] for name in _SOURCE if name in source}
                # OpenAI's Python package merges lists by index.
                self._add({"annotations": [{"index": self._cited, "type": "url_citation", "url_citation": cited}]})
                self._cited += 1
            case ev.ToolCallStarted(id=id, name=name, metadata=notes) if (
                name in self._names and not notes.get("server") and not notes.get("hosted")
            ):
                self._begin_call(id, name)
            case ev.ToolCallDelta(id=id, arguments_delta=text) if id in self._indexes and text:
                self._add_arguments(id, text)
            case ev.ToolCallCompleted(id=id) if id in self._unsent:
                self._add_arguments(id, _arguments_text(event.tool_call))
            case ev.StepRestarted():
                self._restart()
            case ev.MessageStarted():
                self._next_step()
            case ev.ChatCompleted():
                self._end(event.unparsed or event.result)
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
            message = "the model restarted its answer after part of it was sent; retry without stream: true"
            raise RefusedError(502, message, "restarted")
        self._deltas.clear()
        self._indexes.clear()  # all of them belong to this step, because a call to a client tool ends the chat
        self._unsent.clear()
        self._open.clear()
        self._has_text = False

    def _next_step(self) -> None:
        if self._structured:
            self._earlier = []
        else:
            self._earlier += self._deltas
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
            message = "a tool on this server needs approval or an answer, which Chat Completions cannot request"
            self.error = RefusedError(500, message, "approval_required")
            return
        if result.pending_question:
            self._had_text, self._has_text = self._had_text or self._has_text, False
            self._add_text(result.pending_question)
        for call in result.pending_tool_calls:
            if call.id not in self._indexes:  # a call to one of the engine's own manual tools
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
    pieces: dict[int, list[str]] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        if "id" in call:
            calls[call["index"]] = {"id": call["id"], "type": "function", "function": dict(call["function"])}
        pieces.setdefault(call["index"], []).append(call["function"]["arguments"])
    for index, call in calls.items():
        call["function"]["arguments"] = "".join(pieces[index])
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
