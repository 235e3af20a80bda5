"""Cut the text of events into the parts that a guard checks, and keep the order and the verdicts of the checks.

A part ends with its sentence, at its longest length, and where its block does; white space follows the part before it.
The cuts depend on the text alone; that of each agent is cut by itself. Where a completion, a message or a result has
another text than the deltas before it, or where there were none, its own text is checked.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import msgspec
from reactivex import abc
from reactivex.disposable import SingleAssignmentDisposable

from rxllm.collector import BlockKey, block_key, nest, unnest
from rxllm.events import (
    ChatCompleted,
    Custom,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
    RawChunk,
    SourceAdded,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolExecutionCompleted,
    ToolProgress,
    UsageUpdated,
)
from rxllm.operators._event_operators import EVENTS, not_an_event
from rxllm.operators._words_and_sentences import Segmenter, find_sentence
from rxllm.runtime import check_failed, paced, result_of, verdict_error
from rxllm.values import Message, ProviderPart, Response, StreamError, TextPart, ThinkingPart
from rxllm.values.responses import shorten

# Cut the text of events into the parts that a guard checks, and tell which parts each event must wait for


LONGEST = 1024
"""Characters after which a sentence is checked that has not ended."""

CONTEXT = 2048
"""How many characters before a part its check may see."""

_PASSING = frozenset({Custom, RawChunk, SourceAdded, ToolProgress, UsageUpdated})
"""Events that may come in the middle of a sentence."""


class Part(msgspec.Struct):
    """A piece of text that is checked as one; `before` is the text in front of it."""

    number: int
    before: str
    text: str = ""


class _Parts:
    """What a chat and its agents share: how many parts have begun, and those that have ended by their numbers."""

    def __init__(self) -> None:
        self.begun = 0
        self.taken = 0
        self.ended: dict[int, Part] = {}


class GuardParts:
    """The parts of one stream, with those of its agents; `count` of them have begun."""

    def __init__(self, every: str | int, thinking: bool, parts: _Parts | None = None) -> None:
        self._every = every
        self._thinking = thinking
        self._parts = parts or _Parts()
        self._agents: dict[str, GuardParts] = {}
        self._cutter = _Cutter(every)
        self._number = 0  # of the open part
        self._pieces: list[str] = []  # of the open part
        self._block: BlockKey | None = None  # of the open part
        self._begin()

    @property
    def count(self) -> int:
        return self._parts.begun

    def _begin(self) -> None:
        self._texts: list[list[str]] = []  # of the response's blocks, in order
        self._open: dict[BlockKey, list[str]] = {}
        self._before: dict[type[Event], str] = {TextDelta: "", ThinkingDelta: ""}

    def feed(self, event: Event) -> Iterable[tuple[Event, int]]:
        """Return the event, cut in pieces where parts end, each with the number of parts that must have passed."""
        if type(event) not in EVENTS:
            raise not_an_event("guard", event)
        if type(event) is Nested:
            return self._nested(event)
        if type(event) is TextDelta or (type(event) is ThinkingDelta and self._thinking):
            return self._delta(event)
        if type(event) is RawChunk and event.kind != "usage" and not isinstance(event.data, ProviderPart):
            return ()  # it repeats the text of the next events, unchecked
        if type(event) not in _PASSING and type(event) is not ThinkingDelta:
            self._close(event)
            self._whole(self._new_text(event))
        return ((event, self.count),)

    def take(self) -> Iterable[Part]:
        """Yield the parts that have ended since the last time, in order, up to the first that is open."""
        parts = self._parts
        while (part := parts.ended.pop(parts.taken + 1, None)) is not None:
            parts.taken += 1
            yield part

    def close(self) -> None:
        """End the open parts."""
        self._close_own()
        for agent in self._agents.values():
            agent.close()

    def _close_own(self) -> None:
        self._cutter.reset()
        self._end()

    def _close(self, event: Event) -> None:
        """End what `event` ends: the open part, that of an agent, or at the end of the step all."""
        self._close_own()
        if isinstance(event, ToolExecutionCompleted) and event.id in self._agents:
            self._agents[event.id].close()
        elif isinstance(event, StepCompleted | StepRestarted):
            self.close()
            self._agents.clear()

    def _nested(self, event: Nested) -> Iterable[tuple[Event, int]]:
        id, inner = unnest(event)
        if id not in self._agents:
            self._agents[id] = GuardParts(self._every, self._thinking, self._parts)
        return [(nest(id, piece), number) for piece, number in self._agents[id].feed(inner)]

    def _end(self) -> None:
        if not self._pieces or self._block is None:
            return
        kind, text = self._block[0], "".join(self._pieces)
        self._parts.ended[self._number] = Part(self._number, self._before[kind], text)
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
            (event if piece == event.delta else type(event)(piece, event.id), number)
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
                    self._parts.begun += 1
                    self._number = self._parts.begun
                self._pieces.append(piece)
                pieces.append((piece, self._number))
            if ends:
                self._end()
        return pieces

    def _whole(self, text: str) -> None:
        if text:
            self._cut((TextDelta, None), text)
            self._close_own()

    def _new_text(self, event: Event) -> str:
        """Return the text of `event` if it is not that of the events before it."""
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
        message = source.message if isinstance(source, Response) else source
        if message is None:
            return source.output_text if isinstance(source, Response) else ""
        kinds = (TextPart, ThinkingPart) if self._thinking else TextPart
        return "".join(part.text for part in message.parts if isinstance(part, kinds))


class _Cutter:
    """Cuts text into sentences of at most `LONGEST` characters, or after every so many characters."""

    def __init__(self, every: str | int) -> None:
        self._segmenter = Segmenter(find_sentence) if isinstance(every, str) else None
        self._longest = LONGEST if isinstance(every, str) else every
        self._length = 0  # of the open part

    def feed(self, text: str) -> Iterable[tuple[str, bool]]:
        """Yield `text` in pieces, each with whether a part ends with it; the last may be empty."""
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
        """Forget the open part, which has ended."""
        self._length = 0
        if self._segmenter is not None:
            self._segmenter.close()


# The checks of the parts of a text, in order


AT_ONCE = 4
"""How many checks of a stream run at the same time."""

_SHOWN = 80


class GuardSettings(msgspec.Struct, frozen=True):
    """The arguments of ``guard``; `sees_before` is whether `check` takes the text before a part too."""

    check: Callable[..., Any]
    sees_before: bool
    every: Literal["sentence"] | int
    max_lag: float | None
    on_late: Literal["fail", "release"]
    thinking: bool

    def verdict(self, part: Part) -> Any:
        return self.check(part.text, part.before) if self.sees_before else self.check(part.text)


class Check:
    """The check of one part. It is late at `due`; `error` is why it stops the stream."""

    def __init__(self, settings: GuardSettings, part: Part) -> None:
        self.part = part
        self.is_done = part.text.isspace()
        self.due = math.inf
        self.error: StreamError | None = None
        self.subscription = SingleAssignmentDisposable()
        self._settings = settings
        self._verdict: Any = None

    def start(self, on_end: Callable[[Check, BaseException | None], None], scheduler: abc.SchedulerBase | None) -> None:
        """Call the user's function, and ``on_end`` once the verdict is here, with the error if it does not pass."""
        function = self._settings.check

        def on_next(verdict: Any) -> None:
            self._verdict = verdict

        def on_error(error: BaseException) -> None:
            on_end(self, check_failed(function, error) if isinstance(error, Exception) else error)

        def on_completed() -> None:
            on_end(self, verdict_error(function, self._verdict))

        # Behind no gate: the source may be waiting for this very check.
        result = paced(result_of(partial(self._settings.verdict, self.part)), None)
        self.subscription.disposable = result.subscribe(on_next, on_error, on_completed, scheduler=scheduler)


class Checks:
    """The checks of one stream, from the first part that has not passed. Its owner has the lock."""

    def __init__(self, settings: GuardSettings) -> None:
        self.passed = 0  # parts, without a gap
        self.tripped = False
        self._settings = settings
        self._all: deque[Check] = deque()
        self._fresh: deque[Check] = deque()  # those that have not begun
        self._running: list[Check] = []

    def __len__(self) -> int:
        return len(self._all)

    def add(self, parts: Iterable[Part]) -> None:
        """Append the checks of `parts`, and count those that have passed."""
        for part in parts:
            check = Check(self._settings, part)
            self._all.append(check)
            self._fresh.append(check)
        while self._all and self._all[0].is_done and self._all[0].error is None:
            self.passed = self._all.popleft().part.number

    def end(self, check: Check, error: StreamError | None = None) -> bool:
        """Note that `check` has passed, or its `error`; return whether it was still open."""
        if check.is_done:
            return False
        check.is_done = True
        if check in self._running:
            self._running.remove(check)
        if error is not None:
            error.metadata = {**error.metadata, "text": shorten(check.part.text, _SHOWN)}
            check.error = error
            self.tripped = True
        return True

    def next(self) -> Check | None:
        """Return the next check to start, if one may start."""
        while self._fresh and self._fresh[0].is_done:
            self._fresh.popleft()
        if not self._fresh or self.tripped or len(self._running) == AT_ONCE:
            return None
        check = self._fresh.popleft()
        self._running.append(check)
        return check

    def in_the_way(self, shown: int) -> Check | None:
        """Return the check that a new one replaces: the oldest, if its part is among the first `shown`."""
        oldest = self._running[0] if self._fresh and len(self._running) == AT_ONCE else None
        return oldest if oldest is not None and oldest.part.number <= shown else None

    def up_to(self, parts: int) -> list[Check]:
        """Return the open checks of the first so many parts."""
        return [check for check in self._all if check.part.number <= parts and not check.is_done]

    def late(self, time: float) -> list[Check]:
        return [check for check in self._running if check.due <= time]

    @property
    def due(self) -> float:
        """When the next check is late."""
        return min((check.due for check in self._running), default=math.inf)

    def error(self, in_order: bool) -> StreamError | None:
        """Return the error of the first check that has tripped; if `in_order`, once those before it have passed."""
        first = next((check for check in self._all if check.error is not None), None)
        return None if first is None or (in_order and first is not self._all[0]) else first.error

    def clear(self) -> list[Check]:
        """Forget all checks, and return them."""
        checks = list(self._all)
        for container in (self._all, self._fresh, self._running):
            container.clear()
        return checks
