"""Redact the text of events in every place where it occurs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import msgspec

from rxllm.collector import BlockKey, block_key
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    Nested,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolExecutionCompleted,
    ToolResultEncoded,
)
from rxllm.operators._shared.agents import Agents, with_agents
from rxllm.operators._shared.event_operators import EVENTS, not_an_event
from rxllm.operators._shared.redactor import Redactor
from rxllm.values import ChatResult, Message, Part, Response, StepResult, TextPart, ThinkingPart, Thread


class Redacting:
    """Redacts one chat. Each open block, by class of delta and id, has its own `Redactor`.

    Each agent has a `Redacting` of its own; its answer, which is the result of a tool call, is redacted here.
    """

    def __init__(self, make: Callable[[], Redactor]) -> None:
        self._make = make
        self._whole = make().whole
        self._open: dict[BlockKey, Redactor] = {}
        self._agents = Agents(lambda: Redacting(make))

    def feed(self, event: Event) -> Iterable[Event]:
        match event:
            case TextDelta() | ThinkingDelta():
                return self._delta(event)
            case TextCompleted():
                changed = TextCompleted(self._whole(event.text), event.id)
                return (*self._rest(block_key(TextDelta, event.id, self._open)), changed)
            case ThinkingCompleted():
                return (*self._rest(block_key(ThinkingDelta, event.id, self._open)), self._thought(event))
            case MessageCompleted():
                return (*self.close(), msgspec.structs.replace(event, message=self._message(event.message)))
            case ErrorEvent():
                return (*self.close(), event)
            case StepRestarted():
                self._open.clear()
                self._agents.clear()
                return (event,)
            case Nested():
                return self._agents.feed(event)
            case ToolExecutionCompleted():
                return (*self._agents.close(event.id), self._executed(event))
            case ToolResultEncoded() if event.id in self._agents:
                return (ToolResultEncoded(event.id, self._whole(event.content)),)
            case StepCompleted():
                return (*self._agents.close(), StepCompleted(self._step(event.result)))
            case ChatCompleted():
                return (ChatCompleted(self._chat(event.result)),)
            case _ if type(event) in EVENTS:
                return (event,)
            case _:  # it may hold what must not be shown
                raise not_an_event("redact", event)

    def close(self) -> Iterable[Event]:
        return [*self._agents.close(), *(event for key in list(self._open) for event in self._rest(key))]

    def _delta(self, event: TextDelta | ThinkingDelta) -> Iterable[Event]:
        key = block_key(type(event), event.id, self._open)
        block = self._open.get(key) or self._open.setdefault(key, self._make())
        text = block.feed(event.delta)
        if text == event.delta:
            return (event,)
        return (type(event)(text, event.id),) if text else ()

    def _rest(self, key: tuple[Any, str | None]) -> Iterable[Event]:
        block = self._open.pop(key, None)
        rest = block.close() if block is not None else ""
        return (key[0](rest, key[1]),) if rest else ()

    def _thought(self, event: ThinkingCompleted) -> ThinkingCompleted:
        text = self._whole(event.text)
        return event if text == event.text else ThinkingCompleted(text, id=event.id)

    def _executed(self, event: ToolExecutionCompleted) -> ToolExecutionCompleted:
        if event.id not in self._agents:
            return event
        return msgspec.structs.replace(event, result=self._data(event.result))

    def _data(self, value: Any) -> Any:
        """Return a result with its texts redacted: the answer, or one that is parsed to plain data."""
        match value:
            case str():
                return self._whole(value)
            case dict():
                return {key: self._data(entry) for key, entry in cast(dict[Any, Any], value).items()}
            case list():
                return [self._data(entry) for entry in cast(list[Any], value)]
            case _:
                return value

    def _message(self, message: Message) -> Message:
        message = with_agents(message, lambda id, thread: self._agents[id].thread(thread))
        if isinstance(message.content, str):
            return replace(message, content=self._whole(message.content))
        if isinstance(message.content, dict):
            return message
        return replace(message, content=tuple(map(self._part, message.content)))

    def _part(self, part: Part) -> Part:
        if not isinstance(part, TextPart | ThinkingPart):
            return part
        text = self._whole(part.text)
        if text == part.text:
            return part
        return ThinkingPart(text) if isinstance(part, ThinkingPart) else replace(part, text=text)

    def _response(self, response: Response[Any]) -> Response[Any]:
        if response.message is None:
            return replace(response, output_text=self._whole(response.output_text))
        message = self._message(response.message)
        return replace(response, message=message, output_text=message.text)

    def thread(self, thread: Thread) -> Thread:
        return replace(thread, messages=self._messages(thread.messages))

    def _messages(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        return tuple(self._message(message) if self._is_changed(message) else message for message in messages)

    def _is_changed(self, message: Message) -> bool:
        return message.role == "assistant" or message.tool_call_id in self._agents

    def _step(self, step: StepResult[Any]) -> StepResult[Any]:
        return replace(
            step,
            response=self._response(step.response),
            thread=self.thread(step.thread),
            tool_results=self._messages(step.tool_results),
        )

    def _chat(self, chat: ChatResult[Any]) -> ChatResult[Any]:
        final = chat.final_response and self._response(chat.final_response)
        steps = tuple(map(self._step, chat.steps))
        return replace(chat, final_response=final, steps=steps, thread=self.thread(chat.thread))
