"""Steer a running chat with messages from the user."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.collector import STEERED, Unfinished, fold_message
from rxllm.events import (
    Event,
    MessageCompleted,
    MessageStarted,
    Steered,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingDelta,
    ToolCallStarted,
    with_text,
)
from rxllm.operators._words_and_sentences import Segmenter, find_sentence
from rxllm.runtime import RecallingJournal, Stream, call_context, clock, conclude, current_scope, paced, scoped, unpaced
from rxllm.values import Message, StreamError, TextPart, user
from rxllm.values.argument_checks import invalid_option, must_be

Steer = Observable[str | Message]
SteerAt = Literal["sentence", "step"]

MOST = 1024
"""The maximum number of waiting messages."""


class Steering(abc.DisposableBase):
    """The messages that are waiting in one chat.

    `steer` may emit from any thread, even while it is being subscribed to.
    """

    def __init__(self, steer: Steer | None) -> None:
        self._steer = steer
        self._waiting = deque[Message]()
        self._settled: list[Message] | None = None  # if this is not None, the next `take` returns it
        self._messages = SingleAssignmentDisposable()
        self._error: Exception | None = None
        self._failure = SerialDisposable()
        self._subscriptions = CompositeDisposable(self._messages, self._failure)

    def start(self, fail: Callable[[Exception], None], scheduler: abc.SchedulerBase | None) -> None:
        """Collect the messages that `steer` emits. If `steer` fails, call ``fail(error)`` on the chat's event loop."""
        if self._steer is None:
            return
        loop, context = clock(scheduler), call_context()

        def on_error(error: Exception) -> None:
            self._messages.dispose()
            self._error = self._error or error
            self._failure.disposable = loop.schedule(lambda scheduler, state: context.run(fail, error))

        def on_next(item: Any) -> None:
            try:
                self._add(item)
            except Exception as error:
                on_error(error)

        # A slow consumer must not delay messages. Model calls that produce messages need their own scope.
        messages = scoped(paced(self._steer, None), current_scope.get().below_model())
        self._messages.disposable = messages.subscribe(on_next, on_error, scheduler=unpaced(scheduler))

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def waits(self) -> bool:
        return bool(self._waiting if self._settled is None else self._settled)

    def take(self) -> list[Message]:
        if self._settled is None:
            return [self._waiting.popleft() for _ in range(len(self._waiting))]
        settled, self._settled = self._settled, None
        return settled

    def settle(self, journal: RecallingJournal, path: Sequence[str], key: str) -> None:
        """Choose the messages for this step.

        The journal keeps the choice, so that every run of the stream chooses the same messages.
        """
        events = journal.recall(path, key)
        if events is None:
            events = [Steered(message) for message in self.take()]
            journal.keep(path, key, events)
        self._settled = [event.message for event in events if isinstance(event, Steered)]

    def dispose(self) -> None:
        self._subscriptions.dispose()

    def _add(self, item: Any) -> None:
        message = user(item) if isinstance(item, str) else item
        if not isinstance(message, Message) or message.role != "user":
            expected = "an Observable of strings or user messages"
            raise invalid_option("steer", f"{must_be(expected, item)}; write, for example, steer.map(rxllm.user)")
        if len(self._waiting) == MOST:
            raise StreamError(
                "overflow", f"{MOST} messages from steer are already waiting for the next step; emit fewer messages"
            )
        if message.text.strip() or not all(isinstance(part, TextPart) for part in message.parts):
            self._waiting.append(message)


Recall = Callable[[], Sequence[Event] | None]
Keep = Callable[[list[Event]], object]


def until_sentence(
    source: Observable[Event], is_steered: Callable[[], bool], recall: Recall, keep: Keep
) -> Stream[Event]:
    """Cut off the response at the end of a sentence, once ``is_steered()`` returns True.

    The source is disposed before the next sentence, block or tool call. Thinking is never cut off, because the provider
    needs it whole. A response with a tool call is never cut off either.

    ``keep(events)`` is called with the events of a response that has been cut off. If ``recall()`` returns events that
    an earlier run kept, those are emitted instead of the source's events.
    """
    return Stream(
        lambda observer, scheduler=None: _UntilSentence(is_steered, recall, keep, observer).start(source, scheduler)
    )


_BEGINNINGS = frozenset({TextDelta, ThinkingDelta, ToolCallStarted})


class _UntilSentence:
    def __init__(
        self, is_steered: Callable[[], bool], recall: Recall, keep: Keep, observer: abc.ObserverBase[Event]
    ) -> None:
        self._is_steered, self._recall, self._keep = is_steered, recall, keep
        self._has_begun = False
        self._observer = observer
        self._running = SingleAssignmentDisposable()
        self._ended = False
        self._begin()

    def start(self, source: Observable[Event], scheduler: abc.SchedulerBase | None) -> abc.DisposableBase:
        self._running.disposable = source.subscribe(
            self._on_next, self._observer.on_error, self._on_completed, scheduler=scheduler
        )
        return self._running

    def _begin(self) -> None:
        self._seen: list[Event] = []  # the events before the first tool call
        self._has_calls = False
        self._is_after_text = False  # Whether the block that ended last was text.
        self._sentences: Segmenter | None = None  # Splits the open block into sentences.
        self._rest = 0  # The length of the unfinished sentence.

    def _on_next(self, event: Event) -> None:
        if self._ended:
            return
        if not self._has_begun:
            self._has_begun = True
            if (kept := self._recall()) is not None:
                self._end(kept)
                return
        if type(event) in _BEGINNINGS and not self._has_calls and self._is_steered():
            end = self._end_of_sentence(event)
            if end is not None:
                self._cut([with_text(event, event.delta[:end])] if isinstance(event, TextDelta) and end else [])
                return
        self._see(event)
        self._observer.on_next(event)

    def _on_completed(self) -> None:
        if not self._ended:
            self._observer.on_completed()

    def _see(self, event: Event) -> None:
        match event:
            case TextDelta() | ThinkingDelta():
                self._is_after_text = False
            case TextCompleted(text=text):
                self._is_after_text, self._sentences = bool(text.strip()), None
            case ToolCallStarted():
                self._has_calls = True
                self._seen.clear()
            case MessageStarted() | StepRestarted():
                self._begin()
            case _:
                pass
        if not self._has_calls:
            self._seen.append(event)

    def _end_of_sentence(self, event: Event) -> int | None:
        if self._is_after_text:
            return 0
        if not isinstance(event, TextDelta):
            return None
        if self._sentences is None:
            text = "".join(text for pieces in self._unfinished().blocks.values() for text in pieces)
            self._sentences = Segmenter(find_sentence)
            self._rest = len(text) - sum(map(len, self._sentences.feed(text)))
        sentences = self._sentences.feed(event.delta)
        if sentences:
            return len(sentences[0]) - self._rest
        self._rest += len(event.delta)
        return None

    def _unfinished(self) -> Unfinished:
        unfinished = Unfinished()
        for event in self._seen:
            unfinished.see(event)
        return unfinished

    def _cut(self, last: list[Event]) -> None:
        self._seen += last
        closing = self._unfinished().close()
        end = MessageCompleted(fold_message([*self._seen, *closing]), "stop", STEERED, {"cut": "sentence"})
        # Give these events to the journal before disposing of the source. The disposal makes the journal record that
        # the response was cut off, and a later run that replays this record needs the events.
        self._keep([*self._seen, *closing, end])
        self._end([*last, *closing, end])

    def _end(self, events: Sequence[Event]) -> None:
        self._ended = True
        self._running.dispose()
        conclude(self._observer, events)
