"""What every adapter that speaks HTTP keeps, over a real socket and in its provider's own words."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from reactivex import from_iterable

from rxllm import operators as ops
from rxllm.adapters import HTTPAdapter
from rxllm.events import ErrorEvent, Event, TextDelta
from rxllm.runtime import Decoder
from rxllm.testing._adapter_suite import AdapterConformance
from rxllm.testing._chunks import chunkings
from rxllm.testing._observe import Told
from rxllm.testing._rule_table import clip, expect_same
from rxllm.testing._script import REQUEST_ID, Script, Served
from rxllm.testing._scripted_run import TEXTS, missing, unfailing
from rxllm.testing._sent_rules import KEY
from rxllm.testing.loopback import STALL, Cut, Loopback, Reply
from rxllm.values import AdapterError, Call, StreamError

BODILESS = ("malformed_response", "unsupported_feature", "unknown")
"""The reasons that no status stands for."""


class HTTPAdapterConformance(AdapterConformance):
    """A subclass says its provider's wire in five methods, and a loopback server speaks it::

        class TestMine(HTTPAdapterConformance):
            without = {"calls": "the service knows no tools"}
            def adapter(self, url, **connection): return Mine(base_url=url, **connection)
            def said(self, script): return [*map(thought, script.thinking), *map(text, script.texts)]
            def ended(self, script): return [frame(done=script.finish_reason, usage=script.usage)]
            def failed(self, error): return [frame(error={"code": error.reason, "message": error.message})]
            def refused(self, error): return refusal(error, {"message": error.message})

    Timeouts, torn streams and servers that are not there need no words. `headers` are those of a stream's answer, and
    `without` is that of ``AdapterConformance``.
    """

    reasons = tuple(sorted(AdapterError.REASONS - {*BODILESS, "no_scripted_response"}))
    headers: ClassVar[dict[str, str]] = {"Content-Type": "text/event-stream"}

    def adapter(self, url: str, **connection: Any) -> HTTPAdapter:
        """The adapter that asks the server at `url`; `connection` is ``api_key`` or nothing."""
        missing(self, "adapter")

    def said(self, script: Script) -> list[bytes]:
        """The bytes of the script's thinking, texts and calls and of what comes before them, a read each."""
        missing(self, "said")

    def ended(self, script: Script) -> list[bytes]:
        """The bytes of a proper end, with the script's usage and finish reason."""
        missing(self, "ended")

    def failed(self, error: AdapterError) -> list[bytes]:
        """The bytes of an error inside a stream, which say its reason and message."""
        missing(self, "failed")

    def refused(self, error: AdapterError) -> Reply:
        """The answer that says the error's reason, message, ``retry_after`` and ``request_id``; see `refusal`."""
        missing(self, "refused")

    @contextmanager
    def serving(self, script: Script) -> Generator[Served]:
        if script.refuses and script.error is not None and script.error.reason == "network_error":
            with _nobody() as url:
                yield Served(self.adapter(url), lambda: 0)
            return
        with Loopback(self._reply(script)) as server:  # made here, where a mistake in a hook raises as itself
            connections = server.connections
            yield Served(
                self.adapter(server.url),
                lambda: len(server.requests),
                lambda: sum(connection.closed_by == "client" for connection in connections),
                lambda: server.requests,
            )

    def _reply(self, script: Script) -> Reply:
        error = script.error
        if error is not None and script.refuses:
            assert isinstance(error, AdapterError)
            return Reply(before=STALL) if error.reason == "timeout" else self.refused(error)
        if script.stalls and not script.texts:
            return Reply([STALL], headers=self.headers)
        return Reply([*self.said(script), *self._last(script)], headers=self.headers)

    def _last(self, script: Script) -> list[Any]:
        match script.error:
            case None:
                return [STALL] if script.stalls else self.ended(script)
            case AdapterError():
                return self.failed(script.error)
            case error:
                return [STALL if error.reason == "timeout" else Cut.FIN]

    # Only with a wire

    def test_a_cancelled_stream_keeps_what_came(self) -> None:
        events, errors = list[Event](), list[Exception]()

        async def leave(served: Served) -> None:
            came = asyncio.Event()

            def receive(event: Event) -> None:
                events.append(event)
                if isinstance(event, TextDelta) and event.delta == TEXTS[-1]:
                    came.set()

            def fail(error: Exception) -> None:
                errors.append(error)
                came.set()

            self.stream(served).subscribe(receive, fail)
            async with asyncio.timeout(self.seconds):
                await came.wait()
            unfailing(Told(events, errors))
            # Now the loop ends, and the call with it.

        with self.serving(Script(TEXTS, stalls=True)) as served:
            asyncio.run(leave(served))
            self.seen(served)
        assert tuple(event.delta for event in events if isinstance(event, TextDelta)) == TEXTS
        assert [(type(error), getattr(error, "reason", None)) for error in errors] == [(StreamError, "cancelled")]

    def test_the_same_bytes_give_the_same_events_however_they_are_cut(self) -> None:
        for script in (Script(TEXTS), self.whole, Script(TEXTS, error=AdapterError(self.breaks))):
            data = b"".join([*self.said(script), *self._last(script)])
            whole = self.decoded([data])
            lawful = self.hear(from_iterable(whole).pipe(ops.verify()))
            assert lawful.error is None, repr(lawful.error)
            for chunks in chunkings(data):
                sizes = ", ".join(map(str, map(len, chunks[:9])))
                expect_same(f"cut into reads of {sizes} ... bytes, the stream", whole, self.decoded(chunks))

    def test_the_network_gives_what_the_decoder_gives(self) -> None:
        script = self.whole
        with self.serving(script) as served:
            events = self.events(served)
        expect_same("the network", self.decoded([*self.said(script), *self.ended(script)]), events)

    def test_half_a_stream_is_truncated(self) -> None:
        events = self.decoded(self.said(Script(TEXTS)))
        assert isinstance(events[-1], ErrorEvent)
        assert events[-1].error.reason == "truncated"

    def test_build_sends_nothing_and_passes_the_timeout_on(self) -> None:
        with self.serving(Script(TEXTS)) as served:
            built = served.adapter.build(self.request, Call(timeout=7.0))
            assert served.asked() == 0
        assert built.extensions["timeout"]["read"] == 7.0

    def test_no_error_shows_the_key(self) -> None:
        said = f"the key {KEY} is wrong"
        before = AdapterError("authentication_failed", said, request_id=REQUEST_ID)
        for script in (Script(error=before), Script(TEXTS, error=AdapterError(self.breaks, said))):
            with self.serving(script) as served:
                told = self.hear(self.stream(served, api_key=KEY))
            last = [*told.events, *told.errors][-1:]
            assert "is wrong" in repr(last), f"the provider's message got lost: {clip(last)}"
            shown = [repr(told), *map(str, told.errors), *(repr(error.__dict__) for error in told.errors)]
            assert KEY not in "".join(shown)

    def test_no_adapter_shows_its_key(self) -> None:
        assert KEY not in repr(self.adapter("http://127.0.0.1:1", api_key=KEY))

    def decoded(self, chunks: list[bytes]) -> list[Event]:
        """The events of these reads."""
        decoder: Decoder = self.adapter("http://127.0.0.1:1").decoder(self.request)
        return [*(event for chunk in chunks for event in decoder.feed(chunk)), *decoder.close()]


STATUSES = {
    "authentication_failed": 401,
    "rate_limited": 429,
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "provider_unavailable": 503,
}


def refusal(error: AdapterError, body: Any, status: int | None = None) -> Reply:
    """An answer with the usual status of the error's reason, and its request id and wait in the usual headers."""
    named = {"x-request-id": error.request_id, "retry-after": error.retry_after}
    headers = {name: str(held) for name, held in named.items() if held is not None}
    reply = Reply.of_json(body, status or STATUSES[error.reason])
    return replace(reply, headers={**reply.headers, **headers})


@contextmanager
def _nobody() -> Generator[str]:
    """An address at which nobody listens: the port is taken, so that nobody will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
