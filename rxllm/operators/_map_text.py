"""Replace the text of events in every place where it occurs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
from reactivex import Observable

from rxllm.collector import BlockKey, answer, block_key, fold_message
from rxllm.events import (
    ChatCompleted,
    Event,
    MessageCompleted,
    Nested,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
)
from rxllm.operators._lift import lift
from rxllm.operators._shared.agents import Agents, with_agents
from rxllm.operators._shared.event_operators import EVENTS, not_an_event
from rxllm.runtime import Stream
from rxllm.values import ChatResult, Message, Response, StepResult, TextPart, Thread
from rxllm.values.argument_checks import check_function, shown
from rxllm.values.threads import AGENTS


def map_text(fn: Callable[[str], str]) -> Callable[[Observable[Event]], Stream[Event]]:
    """Replace the text by what `fn` returns for it, consistently: in deltas, completions, messages and results.

    ::

        source               --H--i--Hi--message--|        (two deltas, their completion, the message "Hi")
        map_text(str.upper)  --H--I--HI--message--|        (the message is "HI")

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> stream_generate(Fake(["Hel", "lo"]), "Hi").pipe(map_text(str.upper), ops.to_response()).run().output_text
    'HELLO'

    `fn` gets each delta once, and must not need to see more; the completed text joins its results, so that all agree
    however the provider cuts. A delta that becomes empty is dropped. Of a block without deltas, and of a message
    without text events, `fn` gets the whole text. Thinking and tool calls stay as they are.

    Results agree with their events: the responses and threads in ``StepCompleted`` and ``ChatCompleted`` have the new
    text. As an engine's operator it also changes what the model reads in later steps; after ``stream`` it does not. The
    text of agents (``Nested``) is replaced too, at any depth, but not where an agent's answer is the result of a tool
    call. An exception of `fn` ends the stream with it.

    Raises ``ValidationError("invalid_option")`` if `fn` is not a function.
    """
    check_function("fn", fn)
    return lift(lambda: _Mapping(fn))


class _Mapping:
    """Maps one stream; like the fold, it takes None for the id of the open block."""

    def __init__(self, fn: Callable[[str], str]) -> None:
        self._fn = fn
        self._steps: list[tuple[StepResult, StepResult]] = []  # before and after
        self._places: defaultdict[int, list[int]] = defaultdict(list)  # indexes in steps, by length of thread
        self._agents = Agents(lambda: _Mapping(fn))
        self._begin()

    def _begin(self) -> None:
        self._mapped: list[Event] = []  # the current response's events
        self._has_text = False
        self._open: dict[BlockKey, list[str]] = {}

    def feed(self, event: Event) -> Iterable[Event]:
        if type(event) is Nested:
            return self._agents.feed(event)
        mapped = self._map(event)
        if mapped is None:
            return ()
        self._mapped.append(mapped)
        if type(event) is StepCompleted or type(event) is StepRestarted:
            self._begin()
        return (mapped,)

    def close(self) -> Iterable[Event]:
        return ()

    def _map(self, event: Event) -> Event | None:
        match event:
            case TextDelta():
                delta = self._call(event.delta)
                self._has_text = True
                self._open.setdefault(block_key(TextDelta, event.id, self._open), []).append(delta)
                return TextDelta(delta, event.id) if delta else None
            case TextCompleted():
                self._has_text = True
                pieces = self._open.pop(block_key(TextDelta, event.id, self._open), None)
                return TextCompleted(self._whole(event.text) if pieces is None else "".join(pieces), event.id)
            case MessageCompleted():
                return msgspec.structs.replace(event, message=self._message(event.message))
            case StepCompleted():
                return StepCompleted(self._step(event.result))
            case ChatCompleted():
                return ChatCompleted(self._chat(event.result))
            case _ if type(event) in EVENTS:
                return event
            case _:
                raise not_an_event("map_text", event)

    def _whole(self, text: str) -> str:
        return self._call(text) if text else text

    def _call(self, text: str) -> str:
        result = self._fn(text)
        if not isinstance(result, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"map_text(fn): fn must return a string, not {shown(result)}")
        return result

    def _message(self, message: Message) -> Message:
        if self._has_text:
            return replace(message, content=fold_message(self._mapped).content)
        if isinstance(message.content, str):
            return replace(message, content=self._whole(message.content))
        mapped = (replace(p, text=self._whole(p.text)) if isinstance(p, TextPart) else p for p in message.parts)
        return replace(message, content=tuple(mapped))

    def _response(self, response: Response[Any]) -> Response[Any]:
        if response.message is None:
            return replace(response, output_text=self._whole(response.output_text))
        message = self._message(response.message)
        return replace(response, message=message, output_text=message.text)

    def _step(self, step: StepResult) -> StepResult:
        candidates = self._places[len(step.thread)]
        for old, new in map(self._steps.__getitem__, candidates):
            if old == step:
                return new
        candidates.append(len(self._steps))
        new = replace(step, response=self._response(step.response))
        self._steps.append((step, new))  # for `thread`
        new = replace(new, thread=self.thread(step.thread))
        self._steps[-1] = (step, new)
        return new

    def _chat(self, chat: ChatResult) -> ChatResult:
        steps = tuple(map(self._step, chat.steps))
        responses = ((old.response, new.response) for old, new in self._steps)
        final = next((new for old, new in responses if old == chat.final_response), None)
        if final is None and chat.final_response is not None:
            final = self._response(chat.final_response)
        return replace(chat, thread=self.thread(chat.thread), final_response=final, steps=steps)

    def thread(self, thread: Thread) -> Thread:
        """Return `thread` with the new answers of the steps so far; earlier messages stay."""
        messages = [with_agents(message, lambda id, thread: self._agents[id].thread(thread)) for message in thread]
        end = len(messages)
        for old, new in reversed(self._steps):
            was = tuple(map(_without_agents, answer(old.response)))
            place = next((i for i in reversed(range(end)) if (_without_agents(messages[i]),) == was), None)
            if place is not None:
                waiting = {key: value for key, value in messages[place].metadata.items() if key == AGENTS}
                mapped = answer(new.response)
                messages[place : place + 1] = [replace(m, metadata={**m.metadata, **waiting}) for m in mapped]
                end = place
        return replace(thread, messages=tuple(messages))


def _without_agents(message: Message) -> Message:
    # The thread of a halted agent is in its chat's thread alone.
    if AGENTS not in message.metadata:
        return message
    return replace(message, metadata={key: value for key, value in message.metadata.items() if key != AGENTS})
