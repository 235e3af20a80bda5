"""Emit the state of the fold after each event."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.events import Event
from rxllm.operators._shared.event_operators import EVENTS, not_an_event
from rxllm.runtime import Stream
from rxllm.values import Thread
from rxllm.values.argument_checks import check_instance


def scan_collect(thread: Thread | None = None) -> Callable[[Observable[Event]], Stream[StreamCollector]]:
    """Emit the collector's state after each event; states are immutable and cheap to keep.

    ::

        source             --H-----i-----end--|
        scan_collect()     --"H"---"Hi"--"Hi"-|        (current_text)

    >>> from rxllm import Fake, stream_generate
    >>> states = stream_generate(Fake(["H", "i"]), "Hello").pipe(scan_collect())
    >>> [state.current_text for state in states]
    ['', 'H', 'Hi', 'Hi', 'Hi']

    Raises ``ValidationError("invalid_option")`` unless `thread` is a Thread or None.
    """
    check_instance("thread", thread, Thread | None, "a Thread")
    return lambda source: Stream.of(source.scan(_next, StreamCollector(thread)))


def _next(state: StreamCollector, event: Event) -> StreamCollector:
    if type(event) not in EVENTS:
        raise not_an_event("scan_collect", event)
    return state.apply_event(event)
