"""Emit the running total of usage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from reactivex import Observable

from rxllm.collector import innermost, unnest
from rxllm.events import Event, Nested, RawChunk, StepCompleted, StepRestarted, UsageUpdated
from rxllm.operators._shared.event_operators import extract
from rxllm.runtime import Stream
from rxllm.values import Usage


def usage() -> Callable[[Observable[Event]], Stream[Usage]]:
    """Emit the running total of usage over all steps each time it changes. An ``ErrorEvent`` becomes ``on_error``.

    ::

        source      --start--3--5--step--start--4--|        (usage 3, then 5; 4 in the second step)
        usage()     ---------3--5---------------9--|

    >>> from rxllm import Fake, Usage, stream_generate
    >>> list(stream_generate(Fake(["Hi", Usage(3, 1)]), "Hello").pipe(usage()))
    [Usage(input_tokens=3, output_tokens=1)]

    What agents use counts as it comes, at any depth, even that of an agent which is cut off inside its step.
    """
    return extract("usage", _Changes, Nested, *_COUNTED)


_COUNTED = (UsageUpdated, RawChunk, StepCompleted, StepRestarted)


class _Changes:
    def __init__(self) -> None:
        self._total = _Total()
        self._last = Usage()

    def __call__(self, event: Event) -> Iterable[Usage]:
        if not isinstance(innermost(event), _COUNTED):
            return ()
        self._total.add(event)
        last, self._last = self._last, self._total.usage
        return (self._last,) if self._last != last else ()


class _Total:
    """The usage of a chat: its completed steps, the current response, and the agents of the current step."""

    def __init__(self) -> None:
        self._before = Usage()
        self._begin()

    def _begin(self) -> None:
        self._response = Usage()
        self._agents: dict[str, _Total] = {}

    @property
    def usage(self) -> Usage:
        return sum((agent.usage for agent in self._agents.values()), self._before + self._response)

    def add(self, event: Event) -> None:
        match event:
            case UsageUpdated(usage=usage):
                self._response = usage
            case RawChunk(kind="usage", data=Mapping()):
                self._response = Usage(**cast(Mapping[str, Any], event.data))
            case Nested():
                id, inner = unnest(event)
                self._agents.setdefault(id, _Total()).add(inner)
            case StepCompleted(result=result):
                self._response = result.response.usage
                self._before = self.usage
                self._begin()
            case StepRestarted():
                self._begin()
            case _:
                pass
