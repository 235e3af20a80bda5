"""Cut the text of events into the parts that a guard checks.

* White space belongs to the part before it.
* How the text is split into deltas makes no difference.
* Each agent's text is cut separately.
* Completions, messages and results are checked if their text differs from the deltas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rxllm.collector import BlockKey, block_key, nest, unnest
from rxllm.events import (
    ChatCompleted,
    Custom,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
    PartAdded,
    RawChunk,
    SourceAdded,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolProgress,
    UsageUpdated,
    with_text,
)
from rxllm.operators._event_operators import EVENTS, not_an_event
from rxllm.operators._words_and_sentences import Segmenter, find_sentence
from rxllm.values import Message, Response, TextPart, ThinkingPart

LONGEST = 1024
"""The maximum length of a sentence, in characters."""

CONTEXT = 2048
"""The maximum number of characters of earlier text that a check receives along with a part."""

_PASSING = frozenset({Custom, PartAdded, SourceAdded, ToolExecutionStarted, ToolProgress, UsageUpdated})
"""The events that can arrive in the middle of a sentence without ending it."""


class Part(msgspec.Struct):
    number: int
    before: str
    text: str


class _Numbers(msgspec.Struct):
    begun: int = 0
    taken: int = 0
    ended: dict[int, Part] = {}


class GuardParts:
    def __init__(self, every: str | int, thinking: bool, numbers: _Numbers | None = None) -> None:
        self._every = every
        self._thinking = thinking
        self._numbers = numbers or _Numbers()
        self._agents: dict[str, GuardParts] = {}
        self._cutter = _Cutter(every)
        self._number = 0  # the number, pieces and block of the open part
        self._pieces: list[str] = []
        self._block: BlockKey | None = None
        self._begin()

    @property
    def count(self) -> int:
        return self._numbers.begun

    def _begin(self) -> None:
        self._texts: list[list[str]] = []  # one list of pieces per block
        self._open: dict[BlockKey, list[str]] = {}
        self._before: dict[type[Event], str] = {TextDelta: "", ThinkingDelta: ""}

    def feed(self, event: Event) -> Iterable[tuple[Event, int]]:
        """Cut `event` where parts end.

        Return each piece with the number of the last part that must pass before the piece is released.
        """
        if type(event) not in EVENTS:
            raise not_an_event("guard", event)
        match event:
            case Nested():
                id, inner = unnest(event)
                if id not in self._agents:
                    self._agents[id] = GuardParts(self._every, self._thinking, self._numbers)
                return [(nest(id, piece), number) for piece, number in self._agents[id].feed(inner)]
            case TextDelta():
                return self._delta(event)
            case ThinkingDelta():
                return self._delta(event) if self._thinking else ((event, self.count),)
            case RawChunk():
                return ()  # The chunk's frame would repeat text that has not been checked.
            case ToolExecutionCompleted():
                if event.id in self._agents:
                    self._agents[event.id].close()
            case _ if type(event) not in _PASSING:
                self._close(event)
                if text := self._new_text(event):
                    self._cut((TextDelta, None), text)
                    self._close_own()
            case _:
                pass
        return ((event, self.count),)

    def take(self) -> Iterable[Part]:
        """Yield the parts that have ended, up to the first part that is still open."""
        numbers = self._numbers
        while (part := numbers.ended.pop(numbers.taken + 1, None)) is not None:
            numbers.taken += 1
            yield part

    def close(self) -> None:
        self._close_own()
        for agent in self._agents.values():
            agent.close()

    def _close_own(self) -> None:
        self._cutter.reset()
        self._end()

    def _close(self, event: Event) -> None:
        self._close_own()
        if isinstance(event, StepCompleted | StepRestarted):
            self.close()
            self._agents.clear()

    def _end(self) -> None:
        if not self._pieces or self._block is None:
            return
        kind, text = self._block[0], "".join(self._pieces)
        self._numbers.ended[self._number] = Part(self._number, self._before[kind], text)
        self._before[kind] = (self._before[kind] + text)[-CONTEXT:]
        self._pieces = []

    def _delta(self, event: TextDelta | ThinkingDelta) -> Iterable[tuple[Event, int]]:
        key = block_key(type(event), event.id, self._open)
        if key not in self._open:
            self._open[key] = []
            self._texts.append(self._open[key])
        self._open[key].append(event.delta)
        if not event.delta:
            return ((event, self.count),)
        return [
            (event if piece == event.delta else with_text(event, piece), number)
            for piece, number in self._cut(key, event.delta)
        ]

    def _cut(self, block: BlockKey, text: str) -> list[tuple[str, int]]:
        if block != self._block:
            self._close_own()
            self._block = block
        pieces: list[tuple[str, int]] = []
        for piece, ends in self._cutter.feed(text):
            if piece:
                if not self._pieces:
                    self._numbers.begun += 1
                    self._number = self._numbers.begun
                self._pieces.append(piece)
                pieces.append((piece, self._number))
            if ends:
                self._end()
        return pieces

    def _new_text(self, event: Event) -> str:
        """Return the text of `event`, or "" if earlier events already contained that text."""
        match event:
            case TextCompleted():
                return self._completed(block_key(TextDelta, event.id, self._open), event.text)
            case ThinkingCompleted() if self._thinking:
                return self._completed(block_key(ThinkingDelta, event.id, self._open), event.text)
            case StepRestarted():
                self._begin()
            case MessageStarted():
                self._begin()
                return self._unless_known(self._text_of(event.message))
            case MessageCompleted():
                return self._unless_known(self._text_of(event.message))
            case StepCompleted():
                return self._unless_known(self._text_of(event.response))
            case ChatCompleted(result=result) if result.final_response is not None:
                return self._unless_known(self._text_of(result.final_response))
            case _:
                pass
        return ""

    def _completed(self, key: BlockKey, text: str) -> str:
        pieces = self._open.pop(key, None)
        if pieces is None:
            self._texts.append([text])
        elif "".join(pieces) == text:
            return ""
        else:
            pieces[:] = [text]
        return text

    def _unless_known(self, text: str) -> str:
        if text == "".join(piece for pieces in self._texts for piece in pieces):
            return ""
        self._texts = [[text]]
        return text

    def _text_of(self, source: Message | Response[Any]) -> str:
        if isinstance(source, Response):
            if source.message is None:
                return source.output_text
            source = source.message
        kinds = (TextPart, ThinkingPart) if self._thinking else TextPart
        return "".join(part.text for part in source.parts if isinstance(part, kinds))


class _Cutter:
    def __init__(self, every: str | int) -> None:
        self._segmenter = Segmenter(find_sentence) if isinstance(every, str) else None
        self._longest = LONGEST if isinstance(every, str) else every
        self._length = 0  # the length of the open part

    def feed(self, text: str) -> Iterable[tuple[str, bool]]:
        """Yield each piece of `text`, and whether a part ends after it."""
        while text:
            room = self._longest - self._length
            piece, text = text[:room], text[room:]
            for segment in self._segmenter.feed(piece) if self._segmenter is not None else ():
                at = len(segment) - self._length
                self._length = 0
                yield piece[:at], True
                piece = piece[at:]
            self._length += len(piece)
            is_full = self._length == self._longest
            if is_full:
                self.reset()
            yield piece, is_full

    def reset(self) -> None:
        self._length = 0
        if self._segmenter is not None:
            self._segmenter.close()
