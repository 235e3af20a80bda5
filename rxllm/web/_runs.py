"""Streams that keep running after the browser disconnects, so that it can return to them."""

from __future__ import annotations

import time
from threading import RLock

from reactivex import Observable, Subject

from rxllm import Event, Stream, StreamError
from rxllm import operators as ops
from rxllm.values.argument_checks import check_count, check_instance, check_seconds, invalid_option
from rxllm.web._for_client import for_client

SHORTEST = 1.0
"""The shortest grace period, in seconds. It gives the browser that starts a run enough time to connect."""


class Runs:
    """Runs streams in the background, so that browsers can leave and return. To stop a run, call `cancel`.

    >>> import rxllm
    >>> runs = Runs()
    >>> answer = runs.start("chat-1", rxllm.stream_generate(rxllm.Fake("Hello"), "Hi"))
    >>> runs.watch("chat-1").pipe(ops.to_response()).run()
    Response('Hello', stop, 0 tokens)
    >>> runs.watch("chat-2") is None, runs.cancel("chat-1")
    (True, False)

    Events pass through `for_client` before they are kept. If a browser joins late, it first receives the events so far,
    condensed by `ops.share_folded`. A run continues for `grace` seconds after the last browser has left. Once it has
    ended, it is kept for another `grace` seconds. Both periods last at least one second. At most `most` runs are kept
    at a time. Anyone who knows the id of a run can watch it, so use ids that cannot be guessed, or check that the id
    belongs to the user.
    """

    def __init__(self, most: int = 1000, grace: float = 300.0) -> None:
        check_count("most", most)
        self._most = most
        self._grace = max(check_seconds("grace", grace), SHORTEST)
        self._runs: dict[str, _Run] = {}
        self._lock = RLock()

    def start(self, id: str, stream: Observable[Event]) -> Stream[Event]:
        """Start `stream`, and return a stream to send to browsers.

        The run uses the current event loop, or rxllm's own loop if there is none.

        Raises ``ValidationError("invalid_option")`` if a run with this `id` is active or an argument is invalid. Raises
        ``StreamError("overflow")`` if `most` runs are active.
        """
        check_instance("id", id, str, "a string")
        check_instance("stream", stream, Observable, "a stream of events, such as rxllm.stream(...)")
        with self._lock:
            self._make_room(id)
            run = self._runs[id] = _Run(stream, self._grace)
        run.stream.subscribe(on_error=lambda error: None).dispose()
        return run.stream

    def watch(self, id: str) -> Stream[Event] | None:
        """Return a run's stream, or None if the id is unknown. The stream begins with the past events, condensed."""
        with self._lock:
            self._forget()
            run = self._runs.get(id)
        return run and run.stream

    def cancel(self, id: str) -> bool:
        """Stop a run, and return whether it was active.

        Browsers that are watching the run receive ``StreamError("cancelled")``.
        """
        with self._lock:
            run = self._runs.get(id)
        if run is None or run.ended is not None:
            return False
        run.stop.on_error(StreamError("cancelled", f"run {id[:80]!r} was cancelled"))
        return True

    def cancel_all(self) -> None:
        """Stop all runs. Call this before the server's event loop is closed."""
        with self._lock:
            ids = [*self._runs]
        for id in ids:
            self.cancel(id)

    def _make_room(self, id: str) -> None:
        self._forget()
        if id in self._runs and self._runs[id].ended is None:
            fault = f"must not be the id of an active run: got {id[:80]!r}; watch that run instead, or cancel it first"
            raise invalid_option("id", fault)
        self._runs.pop(id, None)
        if len(self._runs) >= self._most:
            ended = {id: run.ended for id, run in self._runs.items() if run.ended is not None}
            if not ended:
                raise StreamError("overflow", f"{self._most} runs are active; cancel one, or pass a larger most=")
            del self._runs[min(ended, key=ended.__getitem__)]

    def _forget(self) -> None:
        since = time.monotonic() - self._grace
        self._runs = {id: run for id, run in self._runs.items() if run.ended is None or run.ended > since}


class _Run:
    """A run. `stop` cancels it. `ended` is the time at which it ended, or None if it is still active."""

    def __init__(self, source: Observable[Event], grace: float) -> None:
        self.stop: Subject[None] = Subject()
        self.ended: float | None = None
        run = Stream.of(source).take_until(self.stop).finally_action(self._end)
        self.stream = run.pipe(for_client(), ops.share_folded(grace))

    def _end(self) -> None:
        self.ended = time.monotonic()
