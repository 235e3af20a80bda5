"""Emit the running total of usage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from reactivex import Observable

from rxllm.events import Event, RawChunk, StepCompleted, StepRestarted, UsageUpdated
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
    """
    return extract("usage", _Total, UsageUpdated, RawChunk, StepCompleted, StepRestarted)


class _Total:
    def __init__(self) -> None:
        self._before = Usage()  # of the completed steps
        self._last = Usage()

    def __call__(self, event: Event) -> Iterable[Usage]:
        match event:
            case UsageUpdated(usage=usage):
                return self._if_changed(self._before + usage)
            case RawChunk(kind="usage", data=Mapping()):
                return self._if_changed(self._before + Usage(**cast(Mapping[str, Any], event.data)))
            case StepCompleted(result=result):
                self._before += result.response.usage
                return self._if_changed(self._before)
            case StepRestarted():
                return self._if_changed(self._before)
            case _:
                return ()

    def _if_changed(self, total: Usage) -> Iterable[Usage]:
        changed, self._last = total != self._last, total
        return (total,) if changed else ()
