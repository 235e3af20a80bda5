"""Tell with an answer what a function of `prepare` has done for it: metadata, an event, and usage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
from reactivex import Observable, throw
from reactivex import operators as rx_ops

from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.engine import Prepared
from rxllm.events import Event, MessageCompleted, MessageStarted, RawChunk, UsageUpdated
from rxllm.runtime import Stream
from rxllm.values import LLMError, Message, Usage
from rxllm.values.errors import with_origin


def annotated(answer: Observable[Event], prepared: Prepared) -> Stream[Event]:
    """Return the events of `answer` with what `prepared` says.

    ::

        answer    --start-------------H--i--usage------end--|
        annotated --start+-event-use--H--i--usage+use--end+-|
    """

    def failed(error: Exception, _: Any) -> Observable[Event]:
        return throw(_with_usage(error, prepared.usage))

    return Stream.of(answer.pipe(ops.lift(lambda: _Annotating(prepared)), rx_ops.catch(failed)))


def _with_usage(error: Exception, usage: Usage) -> Exception:
    if not isinstance(error, LLMError) or usage == Usage():
        return error
    noted = type(error).from_fields({**error.fields(), "metadata": {**error.metadata, "usage": usage}})
    return with_origin(noted, error)


class _Annotating:
    """Adds to the events of one answer, which may begin again after ``StepRestarted``."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._usage: Usage | None = None  # the last that was emitted

    def feed(self, event: Event) -> Iterator[Event]:
        match event:
            case MessageStarted():
                self._usage = None
                yield msgspec.structs.replace(event, message=self._noted(event.message))
                if self._prepared.event is not None:
                    yield self._prepared.event
                yield from self._total(Usage())
            case MessageCompleted():
                yield msgspec.structs.replace(event, message=self._noted(event.message))
            case UsageUpdated():
                yield from self._total(event.usage)
            case RawChunk(kind="usage"):
                yield event
                self._usage = stated = StreamCollector().apply_event(event).usage  # as every fold takes it
                yield from self._total(stated)
            case _:
                yield event

    def close(self) -> tuple[Event, ...]:
        return ()

    def _noted(self, message: Message) -> Message:
        return replace(message, metadata={**message.metadata, **self._prepared.metadata})

    def _total(self, usage: Usage) -> Iterator[Event]:
        total = self._prepared.usage + usage
        if total not in (self._usage, Usage()):
            self._usage = total
            yield UsageUpdated(total)
