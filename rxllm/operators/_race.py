"""The first of several to say something."""

from __future__ import annotations

from collections.abc import Sequence

from reactivex import Observable, abc

from rxllm.events import Event
from rxllm.operators._shared.racing import Racing
from rxllm.runtime import Stream
from rxllm.values import ValidationError


def race(*streams: Observable[Event]) -> Stream[Event]:
    """The events of the stream whose first content comes first; the others are cancelled, to the socket.

    ::

        a                --start--------A--end--|
        b                ----start--B--end--|
        race(a, b)       -----------start,B--end--|

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> slow, quick = Fake([("delay", 0.05), "Well."]), Fake("Yes.")
    >>> race(stream_generate(slow, "Is it?"), stream_generate(quick, "Is it?")).pipe(ops.to_text()).run()
    'Yes.'

    Content is text, thinking, a call, a source, a file, or the end; a ``MessageStarted`` says only that a server has
    taken the request. ``MessageCompleted`` has the metadata ``{"race": {"winner": k, "errors": (...)}}``, which is the
    response's too; the first stream is 0. A stream that fails or ends without content is out; if all do, the last
    failure passes as it came. What the losers have cost is on no result.

    Raises ``ValidationError("invalid_option")`` without streams and for what is no Observable.
    """
    refuse_others(streams)

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return Racing("race", streams, [0.0] * len(streams), observer, scheduler).start()

    return Stream(subscribe)


def refuse_others(streams: Sequence[object]) -> None:
    """Raises ``ValidationError("invalid_option")`` unless `streams` are Observables, at least one."""
    wrong = [(("streams", k), f"is no Observable: {each!r}") for k, each in enumerate(streams) if not _fits(each)]
    if wrong or not streams:
        raise ValidationError("invalid_option", errors=wrong or [(("streams",), "must be at least one")])


def _fits(given: object) -> bool:
    return isinstance(given, Observable)
