"""Send a second request when the first is slow."""

from __future__ import annotations

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._shared.racing import Racing
from rxllm.runtime import Stream
from rxllm.values.argument_checks import check, check_instance, is_positive


def hedge(stream: Observable[Event], after: float) -> Stream[Event]:
    """Subscribe a second time if `stream` has no content after so many seconds; the first with content wins.

    ::

        first time               --start------------!
        second time                        --start--H---------i--end--|
        hedge(stream, after=10)  -------------------(start,H)-i--end--|

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> answers = Fake([("delay", 5), "Late."], "In time.")                  # only the first call is slow
    >>> hedge(stream_generate(answers, "When?"), after=0.01).pipe(ops.to_text()).run()
    'In time.'

    Content is as in ``race``; the other subscription is cancelled, to the socket. If the first fails before the second
    begins, the second begins at once. ``MessageCompleted`` has the metadata
    ``{"hedge": {"winner": 0 or 1, "errors": (...)}}``. For each call of an engine:
    ``Engine(adapter, operators=[lambda events: ops.hedge(events, after=2)])``.

    Raises ``ValidationError("invalid_option")`` if `stream` is not an Observable or `after` not a number above 0.
    """
    check_instance("stream", stream, Observable, "an Observable")
    check("after", after, is_positive(after), "a number of seconds above 0")
    return Stream(
        lambda observer, scheduler=None: Racing("hedge", [stream] * 2, [0, after], observer, scheduler).start()
    )
