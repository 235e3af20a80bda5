"""Test suites for chat adapters that use HTTP, and for image adapters."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from rxllm.adapters import HTTPAdapter
from rxllm.events import ErrorEvent, Event, TextDelta
from rxllm.pipelines import edit_image, generate_image, image_variations
from rxllm.runtime import Stream
from rxllm.testing._adapter_rules import expect_however_cut
from rxllm.testing._adapter_run import KEY, REQUEST_ID, TEXTS, Script, Served, missing
from rxllm.testing._adapter_suite import REASONS, AdapterConformance, pytest
from rxllm.testing._rules import Observed, clip, expect_same
from rxllm.testing.event_checks import expect_lawful, malformed
from rxllm.testing.loopback import STALL, Cut, Loopback, Reply
from rxllm.values import (
    AdapterError,
    Call,
    Image,
    ImageAdapterError,
    ImageRequest,
    ImageResponse,
    Message,
    StreamError,
    ThinkingPart,
    tool_result,
    user,
)
from rxllm.values.responses import shorten

PNG = Image.from_base64(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "image/png"
)
"""A one-pixel image."""

WITHOUT_STATUS = ("malformed_response", "unsupported_feature", "unknown")
"""The reasons for which there is no specific HTTP status."""


class HTTPAdapterConformance(AdapterConformance):
    """A test suite for a chat adapter that uses HTTP.

    In a subclass, define the provider's wire format in five methods::

        class TestMine(HTTPAdapterConformance):
            without = {"calls": "the service has no tools"}
            def adapter(self, url, **connection): return Mine(base_url=url, **connection)
            def said(self, script): return [*map(thought, script.thinking), *map(text, script.texts)]
            def ended(self, script): return [frame(done=script.finish_reason, usage=script.usage)]
            def failed(self, error): return [frame(error={"code": error.reason, "message": error.message})]
            def refused(self, error): return refusal(error, {"message": error.message})

    `headers` are the response headers of a stream. `without` works as in ``AdapterConformance``.
    """

    reasons = tuple(reason for reason in REASONS if reason not in WITHOUT_STATUS)
    headers: ClassVar[dict[str, str]] = {"Content-Type": "text/event-stream"}

    def adapter(self, url: str, **connection: Any) -> HTTPAdapter:
        """Return an adapter for the server at `url`. `connection` may contain an ``api_key``."""
        missing(self, "adapter")

    def said(self, script: Script) -> list[bytes]:
        """Return the chunks for the script's thinking, texts and calls.

        These chunks include any preamble, but not the chunks that `ended` returns.
        """
        missing(self, "said")

    def ended(self, script: Script) -> list[bytes]:
        """Return the chunks that end an answer, including the script's usage and finish reason."""
        missing(self, "ended")

    def failed(self, error: AdapterError) -> list[bytes]:
        """Return the chunks with which the service reports `error` midway through a stream.

        The chunks must contain the error's reason and message.
        """
        missing(self, "failed")

    def refused(self, error: AdapterError) -> Reply:
        """Return the response to a call that the service refuses because of `error`.

        The response must contain the error's reason, message, ``retry_after`` and ``request_id``. You can create it
        with `refusal`.
        """
        missing(self, "refused")

    @contextmanager
    def serving(self, script: Script) -> Generator[Served]:
        if script.refuses and script.error is not None and script.error.reason == "network_error":
            with _closed_port() as url:
                yield Served(self.adapter(url), lambda: 0)
            return
        with Loopback(self._reply(script)) as server:  # `_reply` runs here, so that errors from hooks reach the test
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

    def test_a_cancelled_stream_keeps_what_came(self) -> None:
        observed, arrived = Observed(), asyncio.Event()

        def receive(event: Event) -> None:
            if isinstance(event, TextDelta) and event.delta == TEXTS[-1]:
                arrived.set()

        async def leave(stream: Stream[Event]) -> None:
            observed.subscribe(stream.finally_action(arrived.set), None, receive)
            async with asyncio.timeout(self.seconds):
                await arrived.wait()
            observed.expect_events()
            # Returning ends the event loop, which cancels the call.

        with self.running(Script(TEXTS, stalls=True)) as run:
            asyncio.run(leave(run.verified()))
            self.seconds_until_left(run)
        assert tuple(event.delta for event in observed.events if isinstance(event, TextDelta)) == TEXTS
        errors = [(type(error), getattr(error, "reason", None)) for error in observed.errors]
        assert errors == [(StreamError, "cancelled")]

    def test_the_same_bytes_give_the_same_events_however_they_are_cut(self) -> None:
        for script in (Script(TEXTS), self.whole, Script(TEXTS, error=AdapterError(self.breaks))):
            data = b"".join([*self.said(script), *self._last(script)])
            with self.running(script) as run:
                expect_lawful(run.decode([data]))
                expect_however_cut(run, data)

    def test_a_malformed_frame_of_its_own_raises_nothing(self) -> None:
        script = self.whole
        reads = [*self.said(script), *self.ended(script)]
        with self.running(script) as run:
            for place, read in enumerate(reads):
                for variant in malformed(read):
                    events = run.decode([*reads[:place], variant, *reads[place + 1 :]])
                    try:
                        expect_lawful(events)
                    except AssertionError as error:
                        raise AssertionError(f"with {clip(variant)} in place of {clip(read)}: {error}") from error

    def test_what_the_provider_signs_goes_back_to_it(self) -> None:
        with self.running(self.whole) as run:
            message = run.answer().message or Message("assistant")
            thinking = (part for part in message.parts if isinstance(part, ThinkingPart))
            signatures = [part.signature for part in thinking if part.signature]
            if not signatures:
                pytest.skip("the suite's said() sends no signature")
            results = [tool_result(call.id, "1") for call in message.tool_calls]
            run.observe(run.stream([user("Call f, twice."), message, *results, user("Go on.")]))
            body = run.served.requests()[-1].body.decode() if run.served.requests else ""
        for signature in signatures:
            assert signature in body, f"the signature {signature!r} is not in {shorten(body, 120)}"

    def test_the_network_gives_what_the_decoder_gives(self) -> None:
        script = self.whole
        with self.running(script) as run:
            decoded = run.decode([*self.said(script), *self.ended(script)])
            expect_same("the network", decoded, run.events())

    def test_half_a_stream_is_truncated(self) -> None:
        script = Script(TEXTS)
        with self.running(script) as run:
            events = run.decode(self.said(script))
        assert isinstance(events[-1], ErrorEvent)
        assert events[-1].error.reason == "truncated"

    def test_build_sends_nothing_and_passes_the_timeout_on(self) -> None:
        with self.running(Script(TEXTS)) as run:
            built = run.served.adapter.build(run.received[0], Call(timeout=7.0))
            assert run.served.asked() == 0
        assert built.extensions["timeout"]["read"] == 7.0

    def test_no_error_shows_the_key(self) -> None:
        message = f"the key {KEY} is wrong"
        refusal = AdapterError("authentication_failed", message, request_id=REQUEST_ID)
        for script in (Script(error=refusal), Script(TEXTS, error=AdapterError(self.breaks, message))):
            with self.running(script) as run:
                observed = run.observe(run.verified(api_key=KEY))
            last = [*observed.events, *observed.errors][-1:]
            assert "is wrong" in repr(last), f"the provider's message was lost: {clip(last)}"
            errors = [(str(error), repr(error.__dict__)) for error in observed.errors]
            assert KEY not in f"{observed} {errors}"

    def test_no_adapter_shows_its_key(self) -> None:
        assert KEY not in repr(self.adapter("http://127.0.0.1:1", api_key=KEY))


class ImageConformance:
    """A test suite for an image adapter.

    In a subclass, define `serving`. `model` must support all of the adapter's operations.
    """

    model: ClassVar[str] = "conformance"

    def serving(self, images: int | None) -> AbstractContextManager[Served]:
        """Return a context manager that starts a service and yields a `Served`.

        The service answers with as many copies of `PNG` as the request's ``n``, but with at most `images` copies. If
        `images` is None, the service refuses every call, and each refusal contains the request id `REQUEST_ID`.
        """
        missing(self, "serving")

    def test_its_operations_are_legal(self) -> None:
        with self.serving(1) as served:
            assert served.adapter.operations
            assert set(served.adapter.operations) <= OPERATIONS

    def test_an_unknown_operation_is_refused_before_any_io(self) -> None:
        with self.serving(1) as served:
            unknown: Any = next(iter(sorted(OPERATIONS - set(served.adapter.operations))), "animation")
            request = ImageRequest(unknown, prompt="a kestrel", input_images=(PNG,))
            with pytest.raises(ImageAdapterError) as caught:
                generate_image(served.adapter, request, model=self.model).run()
            assert caught.value.reason == "unsupported_operation"
            assert caught.value.metadata["operation"] == unknown
            assert served.asked() == 0

    def test_a_refusal_keeps_the_providers_request_id(self) -> None:
        with self.serving(None) as served, pytest.raises(ImageAdapterError) as caught:
            generate_image(served.adapter, "a kestrel", model=self.model, retry=False).run()
        assert caught.value.request_id == REQUEST_ID

    def test_metadata_come_back(self) -> None:
        metadata = {"job": 7, "tags": ("a", "b")}
        with self.serving(1) as served:
            response = generate_image(served.adapter, "a kestrel", model=self.model, metadata=metadata).run()
        assert {name: response.metadata.get(name) for name in metadata} == metadata

    def test_it_generates(self) -> None:
        with self.serving(1) as served:
            self._assert_answer(served, "generate", generate_image(served.adapter, "a kestrel", model=self.model))

    def test_it_edits(self) -> None:
        with self.serving(1) as served:
            self._assert_answer(served, "edit", edit_image(served.adapter, [PNG, PNG], "more blue", model=self.model))

    def test_it_varies(self) -> None:
        with self.serving(1) as served:
            self._assert_answer(served, "variation", image_variations(served.adapter, PNG, model=self.model))

    def test_usage_counts_the_images(self) -> None:
        with self.serving(1) as served:
            assert generate_image(served.adapter, "a kestrel", model=self.model).run().usage.images >= 1

    def test_four_are_one_to_four(self) -> None:
        with self.serving(4) as served:
            response = generate_image(served.adapter, "a kestrel", model=self.model, n=4).run()
        assert 1 <= len(response.images) <= 4

    def _assert_answer(self, served: Served, operation: str, call: Stream[ImageResponse]) -> None:
        """Assert that `call` returns one image or, if the adapter does not support `operation`, is refused."""
        assert served.asked() == 0
        if operation in served.adapter.operations:
            (response,) = list(call)
            assert [image.to_binary() for image in response.images] == [PNG.to_binary()]
            assert served.asked() == 1
        else:
            with pytest.raises(ImageAdapterError):
                call.run()
            assert served.asked() == 0


OPERATIONS = {"generate", "edit", "variation"}


def refusal(error: AdapterError, body: Any, status: int | None = None) -> Reply:
    """Return a response with the usual status for `error`.

    `status` overrides the usual status. The headers contain the error's request id and ``retry_after``.
    """
    fields = {"x-request-id": error.request_id, "retry-after": error.retry_after}
    headers = {name: str(value) for name, value in fields.items() if value is not None}
    reply = Reply.of_json(body, status or STATUSES[error.reason])
    return replace(reply, headers={**reply.headers, **headers})


STATUSES = {
    "authentication_failed": 401,
    "rate_limited": 429,
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "provider_unavailable": 503,
}


@contextmanager
def _closed_port() -> Generator[str]:
    """Yield a URL that no server is listening on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
