"""Another text, in every place where the text is said."""

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
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
)
from rxllm.operators._lift import lift
from rxllm.operators._shared.only_events import EVENTS, no_event
from rxllm.runtime import Stream
from rxllm.values import ChatResult, Message, Response, StepResult, TextPart, Thread
from rxllm.values.arguments import check_function


def map_text(fn: Callable[[str], str]) -> Callable[[Observable[Event]], Stream[Event]]:
    """Replace the text by what `fn` makes of it, consistently: in deltas, completions, messages and results.

    ::

        source               --H--i--Hi--message--|        (two deltas, their completion, the message "Hi")
        map_text(str.upper)  --H--I--HI--message--|        (the message is "HI")

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> stream_generate(Fake(["Hel", "lo"]), "Hi").pipe(map_text(str.upper), ops.to_response()).run().output_text
    'HELLO'

    `fn` is called once for each delta, and the completed text is what it made of them, so that all agree however the
    provider cuts; it must not need to see more than a delta. A delta that becomes empty is left out. A block without
    deltas is given to `fn` whole, and so is a message whose text no event said. Thinking and calls stay as they are.

    Whatever results follow are rewritten too, so that they agree with their events: the responses and the threads of
    ``StepCompleted`` and ``ChatCompleted``. The model itself is told the new text where this is one of the engine's
    operators; after ``stream`` it is told the old one while that chat lasts. An exception of `fn` ends the stream with
    it.

    Raises ``ValidationError("invalid_option")`` for what is no function.
    """
    check_function("fn", fn)
    return lift(lambda: _Mapping(fn))


class _Mapping:
    """One stream. Blocks are told apart as the fold does it."""

    def __init__(self, fn: Callable[[str], str]) -> None:
        self._fn = fn
        self._steps: list[tuple[StepResult, StepResult]] = []  # as they came, and as they went
        self._places: defaultdict[int, list[int]] = defaultdict(list)  # in these, by the lengths of their threads
        self._begin()

    def _begin(self) -> None:
        self._said: list[Event] = []  # the current response's events, as they went
        self._has_text = False
        self._open: dict[BlockKey, list[str]] = {}

    def feed(self, event: Event) -> Iterable[Event]:
        mapped = self._map(event)
        if mapped is None:
            return ()
        self._said.append(mapped)
        if type(event) is StepCompleted or type(event) is StepRestarted:
            self._begin()
        return (mapped,)

    def close(self) -> Iterable[Event]:
        return ()

    def _map(self, event: Event) -> Event | None:
        match event:
            case TextDelta():
                delta = self._made(event.delta)
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
                raise no_event("map_text", event)

    def _whole(self, text: str) -> str:
        return self._made(text) if text else text

    def _made(self, text: str) -> str:
        made = self._fn(text)
        if not isinstance(made, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"map_text() puts text in the place of text, and its function gave {made!r}")
        return made

    def _message(self, message: Message) -> Message:
        if self._has_text:
            return replace(message, content=fold_message(self._said).content)
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
        alike = self._places[len(step.thread)]
        for came, went in map(self._steps.__getitem__, alike):
            if came == step:
                return went
        alike.append(len(self._steps))
        self._steps.append((step, replace(step, response=self._response(step.response))))
        self._steps[-1] = (step, replace(self._steps[-1][1], thread=self._thread(step.thread)))
        return self._steps[-1][1]

    def _chat(self, chat: ChatResult) -> ChatResult:
        steps = tuple(map(self._step, chat.steps))
        responses = ((came.response, went.response) for came, went in self._steps)
        final = next((went for came, went in responses if came == chat.final_response), None)
        if final is None and chat.final_response is not None:
            final = self._response(chat.final_response)
        return replace(chat, thread=self._thread(chat.thread), final_response=final, steps=steps)

    def _thread(self, thread: Thread) -> Thread:
        """`thread` with the answers of the steps so far as they went; what was said before them stays."""
        messages = list(thread.messages)
        end = len(messages)
        for came, went in reversed(self._steps):
            place = next((i for i in reversed(range(end)) if (messages[i],) == answer(came.response)), None)
            if place is not None:
                messages[place : place + 1] = answer(went.response)
                end = place
        return replace(thread, messages=tuple(messages))
