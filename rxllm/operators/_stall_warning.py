"""Warn about a stream that has fallen silent."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._shared.operate import operate
from rxllm.operators._shared.watchdog import Activity, Watch
from rxllm.runtime import Stream
from rxllm.values.argument_checks import check, check_function, is_positive


def stall_warning(after: float, fn: Callable[[float, int], object]) -> Callable[[Observable[Event]], Stream[Event]]:
    """Call ``fn(seconds, events)`` when no content has come for `after` seconds, once per stall, and go on.

    ::

        source                  --start--H------------i--end--|
        stall_warning(5, fn)                   fn                 (5 s after H; two events had come)
                                --start--H------------i--end--|

    >>> from rxllm import Fake, stream_generate
    >>> slow = stream_generate(Fake(["Hel", ("delay", 0.05), "lo"]), "Hi")
    >>> warn = lambda seconds, events: print(f"silent after {events} events")
    >>> response = slow.pipe(stall_warning(0.01, warn)).run()
    silent after 2 events

    Content and silence are defined in `time_limits`; the wait for the first content is a stall too. An exception of
    `fn` ends the stream.

    Raises ``ValidationError("invalid_option")`` unless `after` is a number above 0 and `fn` is a function.
    """
    check("after", after, is_positive(after), "a number of seconds above 0")
    check_function("fn", fn)
    return operate(lambda source, observer, scheduler: Watch(_Warning(after, fn), observer, scheduler).start(source))


class _Warning:
    def __init__(self, after: float, fn: Callable[[float, int], object]) -> None:
        self._after = after
        self._fn = fn
        self._warned: float | None = None  # the beginning of the last stall that was reported

    def see(self, event: Event) -> None:
        pass

    def due(self, heard: Activity) -> float | None:
        return None if heard.over or heard.last == self._warned else heard.last + self._after

    def act(self, heard: Activity) -> BaseException | None:
        self._warned = heard.last
        try:
            self._fn(heard.now() - heard.last, heard.events)
        except BaseException as error:
            return error
        return None
