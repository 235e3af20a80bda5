"""Tell of a stream that has fallen silent."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxllm.events import Event
from rxllm.operators._shared.watchdog import Activity, Watch
from rxllm.runtime import Stream
from rxllm.values import ValidationError
from rxllm.values.arguments import is_positive


def stall_warning(after: float, fn: Callable[[float, int], object]) -> Callable[[Observable[Event]], Stream[Event]]:
    """Call ``fn(seconds, events)`` when nothing has been said for `after` seconds: once per stall, and go on.

    ::

        source                  --start--H------------i--end--|
        stall_warning(5, fn)                   fn                 (5 s after H; two events had come)
                                --start--H------------i--end--|

    >>> from rxllm import Fake, stream_generate
    >>> slow = stream_generate(Fake(["Hel", ("delay", 0.05), "lo"]), "Hi")
    >>> warn = lambda seconds, events: print(f"silent after {events} events")
    >>> response = slow.pipe(stall_warning(0.01, warn)).run()
    silent after 2 events

    What counts as silence is said in `timeouts`; the wait for the first content is one too. An exception of `fn` ends
    the stream with it. Raises ``ValidationError("invalid_option")`` for what is no number above 0, or no function.
    """
    wrong = {
        "after": (is_positive(after), f"must be a number of seconds above 0, not {after!r}"),
        "fn": (callable(fn), f"must be a function, not {fn!r}"),
    }
    if errors := [((name,), what) for name, (fine, what) in wrong.items() if not fine]:
        raise ValidationError("invalid_option", errors=errors)

    def operator(source: Observable[Event]) -> Stream[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return Watch(_Warning(after, fn), observer, scheduler).start(source)

        return Stream(subscribe)

    return operator


class _Warning:
    def __init__(self, after: float, fn: Callable[[float, int], object]) -> None:
        self._after = after
        self._fn = fn
        self._told: float | None = None  # since when it was silent, at the last warning

    def see(self, event: Event) -> None:
        pass

    def due(self, heard: Activity) -> float | None:
        return None if heard.over or heard.last == self._told else heard.last + self._after

    def act(self, heard: Activity) -> BaseException | None:
        self._told = heard.last
        try:
            self._fn(heard.now() - heard.last, heard.events)
        except BaseException as error:
            return error
        return None
