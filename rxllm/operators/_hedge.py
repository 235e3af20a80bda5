"""A second request for when the first is slow."""

from __future__ import annotations

from reactivex import Observable, abc

from rxllm.events import Event
from rxllm.operators._race import refuse_others
from rxllm.operators._shared.racing import Racing
from rxllm.runtime import Stream
from rxllm.values.arguments import invalid_option, is_positive


def hedge(stream: Observable[Event], after: float) -> Stream[Event]:
    """Subscribe a second time if `stream` has said nothing after so many seconds; who speaks first is heard.

    ::

        first time               --start---------------------!
        second time                        --start--H--i--end--|
        hedge(stream, after=10)  ------------------start,H--i--end--|

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> answers = Fake([("delay", 5), "Late."], "In time.")                  # the first call is slow, the second is not
    >>> hedge(stream_generate(answers, "When?"), after=0.01).pipe(ops.to_text()).run()
    'In time.'

    To say something is to send content, as in ``race``; the other subscription is cancelled, to the socket. If the
    first fails before it is joined, the second begins at once. ``MessageCompleted`` has the metadata
    ``{"hedge": {"winner": 0 or 1, "errors": (...)}}``. For each call of an engine:
    ``Engine(adapter, operators=[lambda events: ops.hedge(events, after=2)])``.

    Raises ``ValidationError("invalid_option")`` if `stream` is no Observable or `after` no number above 0.
    """
    refuse_others((stream,))
    if not is_positive(after):
        raise invalid_option("after", f"must be a number of seconds above 0, not {after!r}")

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return Racing("hedge", [stream, stream], [0.0, after], observer, scheduler).start()

    return Stream(subscribe)
