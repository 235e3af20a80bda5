"""AG-UI frames that stand for several others: chunks, and snapshots of the messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from rxllm.web._frames import Frame, rest

OWN = "rxllm"
"""The name of rxllm's own ``CUSTOM`` frames. The decoder emits no events for frames that have it as ``rawEvent``."""

_OTHERS = ("user", "system", "developer", "tool", "activity")

_MOST_LOOKS = 100
"""How many texts of a snapshot are looked for in vain among the deltas that had other ids. Later ones are new."""


def author(message: Frame) -> str:
    """Return the role of a message, or of a frame that starts one. A role that AG-UI does not know is the assistant."""
    role = str(message.get("role")).lower()
    return role if role in _OTHERS else "assistant"


class LongForms:
    """Expands chunks, and adds what an agent has sent only in a snapshot.

    A snapshot contains the whole conversation. The messages of this run follow the user's last message and all messages
    that the agent was `sent`. They are added when the run ends, since many agents send the same messages as deltas too,
    before the snapshot or after it. Agents that use rxllm send everything as deltas.
    """

    def __init__(self, sent: Callable[[], Iterable[Frame]] | None = None) -> None:
        self._sent = sent
        self._chunks = _Chunks()
        self._restart({})

    def read(self, frame: Frame) -> Iterator[Frame]:
        for long_form in self._chunks.read(frame):
            if "subagentRunId" not in long_form:
                self._note(long_form)
                if long_form["type"] in ("RUN_FINISHED", "RUN_ERROR") and not self._is_ours:
                    yield from self._unsent()
            yield long_form

    def is_answer(self, frame: Frame) -> bool:
        """Return whether the text in `frame` is the agent's own."""
        return frame.get("messageId") not in self._others

    def _restart(self, frame: Frame) -> None:
        self._is_ours = frame.get("rawEvent") == OWN
        given = frame.get("input")
        self._input = _messages_in(cast(Frame, given).get("messages") if isinstance(given, dict) else None)
        self._snapshot: list[Frame] = []
        self._others: set[Any] = set()
        self._looks = 0
        self._said: dict[str, dict[Any, list[str]]] = {"TEXT": {}, "REASONING": {}}
        """The deltas of each message, by kind and message id."""
        self._calls: set[str] = set()
        self._results: set[str] = set()

    def _note(self, frame: Frame) -> None:
        match frame:
            case {"type": "RUN_STARTED"}:
                self._restart(frame)
            case {"type": "TEXT_MESSAGE_START", "messageId": str(id)}:
                (self._others.discard if author(frame) == "assistant" else self._others.add)(id)
            case {"type": "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT" as kind, "messageId": str(id)}:
                if self.is_answer(frame):
                    self._said[kind.partition("_")[0]].setdefault(id, []).append(str(frame.get("delta")))
            case {"type": "TOOL_CALL_START", "toolCallId": str(id)}:
                self._calls.add(id)
            case {"type": "TOOL_CALL_RESULT", "toolCallId": str(id)}:
                self._results.add(id)
            case {"type": "MESSAGES_SNAPSHOT", "messages": messages}:
                self._snapshot = _messages_in(messages)
            case _:
                pass

    def _unsent(self) -> Iterator[Frame]:
        """Yield frames for the parts of the snapshot that the agent has not sent as deltas."""
        self._looks = _MOST_LOOKS
        messages = self._new_messages() if self._snapshot else []
        ids = {message["id"] for message in messages}
        # The agent may have given messages of the snapshot other ids in its deltas.
        strays = {
            kind: "".join(piece for id, pieces in said.items() if id not in ids for piece in pieces)
            for kind, said in self._said.items()
        }
        for message in messages:
            role, id = message.get("role"), message["id"]
            call = str(message.get("toolCallId"))
            if role == "tool" and call in self._calls and call not in self._results:
                content = message.get("content", "")
                yield {"type": "TOOL_CALL_RESULT", "messageId": id, "toolCallId": call, "content": content}
            if role in _OTHERS:
                continue
            kind = "REASONING" if role == "reasoning" else "TEXT"
            yield from self._unsent_text(kind, message, strays[kind])
            for call in message.get("toolCalls") or ():
                yield from self._unsent_call(id, call)

    def _new_messages(self) -> list[Frame]:
        messages: list[Frame] = [
            {**message, "id": message["id"] if isinstance(message.get("id"), str) else f"snapshot_{number}"}
            for number, message in enumerate(self._snapshot)
        ]
        sent = self._input if self._sent is None else [*self._sent()]
        known = {str(message[name]) for message in sent for name in ("id", "toolCallId") if name in message}

        def is_old(message: Frame) -> bool:
            is_result = message.get("role") == "tool" and (not sent or str(message.get("toolCallId")) in known)
            return message.get("role") == "user" or message["id"] in known or is_result

        start = max((number + 1 for number, message in enumerate(messages) if is_old(message)), default=0)
        return [message for message in messages[start:] if "subagentRunId" not in message]

    def _unsent_text(self, kind: str, message: Frame, strays: str) -> Iterator[Frame]:
        id, text = message["id"], _text_of(message.get("content"))
        said = self._said[kind]
        if id in said:
            text, id = rest(text, "".join(said[id])), f"{id}:rest"
        elif self._looks and text in strays:
            text = ""
        else:
            self._looks = max(self._looks - 1, 0)
            text = text.removeprefix(strays)
        if not text:
            return
        yield {"type": f"{kind}_MESSAGE_START", "messageId": id, "role": "assistant"}
        yield {"type": f"{kind}_MESSAGE_CONTENT", "messageId": id, "delta": text}
        yield {"type": f"{kind}_MESSAGE_END", "messageId": id}
        if kind == "REASONING" and isinstance(message.get("encryptedValue"), str):
            yield {"type": "REASONING_ENCRYPTED_VALUE", "entityId": id, "encryptedValue": message["encryptedValue"]}

    def _unsent_call(self, parent: str, call: Any) -> Iterator[Frame]:
        match call:
            case {"id": str(id), "function": {"name": str(name), **function}} if id not in self._calls:
                self._calls.add(id)
                arguments: Any = function.get("arguments") or ""
                text = arguments if isinstance(arguments, str) else json.dumps(arguments)
                yield {"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": name, "parentMessageId": parent}
                yield {"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": text}
                yield {"type": "TOOL_CALL_END", "toolCallId": id}
            case _:
                pass


def _messages_in(messages: Any) -> list[Frame]:
    items = cast(list[Any], messages) if isinstance(messages, list) else []
    return [cast(Frame, item) for item in items if isinstance(item, dict)]


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "".join(_text_of(part.get("text")) for part in _messages_in(cast(Any, content)))
    return content if isinstance(content, str) else ""


class _Chunks:
    """Expands ``*_CHUNK`` frames into start, content and end frames."""

    def __init__(self) -> None:
        self._open: dict[Any, tuple[str, str]] = {}  # the kind and id of the item that each agent has open

    def read(self, frame: Frame) -> Iterable[Frame]:
        kind, run = frame["type"], frame.get("subagentRunId")
        if not isinstance(kind, str):
            raise TypeError("type is not text")
        if not kind.endswith("_CHUNK"):
            return (*self._ended(run), frame)
        kind = kind.removesuffix("_CHUNK")
        key, content = ("toolCallId", "ARGS") if kind == "TOOL_CALL" else ("messageId", "CONTENT")
        frames: list[Frame] = []
        id = frame.get(key, self._open.get(run, (kind, None))[1])
        if self._open.get(run) != (kind, id):
            frames += [*self._ended(run), {**frame, "type": f"{kind}_START", key: id}]
            self._open[run] = (kind, id)
        if frame.get("delta"):
            frames.append({**_tag(run), "type": f"{kind}_{content}", key: id, "delta": frame["delta"]})
        return frames

    def _ended(self, run: Any) -> list[Frame]:
        if run not in self._open:
            return []
        kind, id = self._open.pop(run)
        return [{**_tag(run), "type": f"{kind}_END", "toolCallId" if kind == "TOOL_CALL" else "messageId": id}]


def _tag(run: str | None) -> Frame:
    return {} if run is None else {"subagentRunId": run}
