"""Take the stream whose content comes first."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm import runtime
from rxllm.events import Event
from rxllm.runtime.stream_arguments import check_streams


def race(*others: Observable[Event]) -> Callable[[Observable[Event]], runtime.Stream[Event]]:
    """Race the source against `others`: the first with content wins, and the rest are cancelled, to the socket.

    ``a.pipe(ops.race(b, c))`` is ``rxllm.race(a, b, c)``: in the metadata of the result, the source is stream 0.

    Raises ``ValidationError("invalid_option")`` without `others`, and for one that is not an Observable.
    """
    check_streams("others", others)
    return lambda source: runtime.race(source, *others)
