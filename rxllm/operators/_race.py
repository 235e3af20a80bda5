"""Take the stream whose content comes first."""

from __future__ import annotations

from reactivex import Observable, abc

from rxllm.events import Event
from rxllm.operators._shared.racing import Racing
from rxllm.runtime import Stream
from rxllm.values.argument_checks import invalid_option, must_be


def race(*streams: Observable[Event]) -> Stream[Event]:
    """Emit the events of the stream whose first content comes first; the others are cancelled, to the socket.

    ::

        a                --start----!
        b                ----start--B---------end--|
        race(a, b)       -----------(start,B)-end--|

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> slow, quick = Fake([("delay", 0.05), "Well."]), Fake("Yes.")
    >>> race(stream_generate(slow, "Is it?"), stream_generate(quick, "Is it?")).pipe(ops.to_text()).run()
    'Yes.'

    Content is text, thinking, a tool call, a source, a file, or the end; ``MessageStarted`` does not count, because it
    only shows that a server took the request. The result, a response's as well as a chat's, has the metadata
    ``{"race": {"winner": k, "errors": (...)}}``; the first stream is 0. A stream that fails or ends without content is
    out; if all do, the last failure passes unchanged. No result includes the usage of the losers.

    Raises ``ValidationError("invalid_option")`` without streams, and for one that is not an Observable.
    """
    if not streams:
        raise invalid_option("streams", "must be at least one")
    for index, stream in enumerate(streams):
        if not isinstance(stream, Observable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise invalid_option(("streams", index), must_be("an Observable", stream))

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return Racing("race", streams, [0.0] * len(streams), observer, scheduler).start()

    return Stream(subscribe)
