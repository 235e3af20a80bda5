"""The HTTP source: when it ends, and which error each failure becomes."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import logging
import re
import socket
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import pytest

from rxllm import (
    AdapterError,
    Engine,
    ErrorEvent,
    Event,
    MessageCompleted,
    OpenAIChat,
    Response,
    StreamError,
    TextDelta,
    ValidationError,
    generate,
    stream_generate,
)
from rxllm import operators as ops
from rxllm.http.timeouts import DRAIN_SECONDS, ERROR_BODY_SECONDS
from rxllm.testing import World, simulate
from rxllm.testing.loopback import DONE, STALL, Cut, Loopback, Pause, Reply, chat, chat_chunk, chat_finish, endless
from tests.closing import SILENT, assert_closes
from tests.http.support import held
from tests.runtime.support import ON_BOTH, model
from tests.waiting import until

pytestmark = [ON_BOTH, pytest.mark.sockets]

KEY = "sk-sentinel-0123456789"


def answer(reply: Reply, **options: Any) -> Response[Any]:
    with Loopback(reply) as server:
        return generate(model(server, api_key=KEY, **options), "Hi").run()


def failure(reply: Reply, **options: Any) -> AdapterError:
    with pytest.raises(AdapterError) as caught:
        answer(reply, **options)
    return caught.value


def simulated(reply: Reply, seconds: float, **options: Any) -> tuple[float, Response[Any] | AdapterError]:
    """When, in virtual time, a call ends whose adapter has a timeout of `seconds`, and its answer or failure."""

    async def app(world: World) -> tuple[float, Response[Any] | AdapterError]:
        ended: Response[Any] | AdapterError
        try:
            ended = await generate(model(world.serve(reply), timeout=seconds), "Hi", **options)
        except AdapterError as error:
            ended = error
        return asyncio.get_running_loop().time(), ended

    return simulate(app, faults=()).value


def cut_once_read(cut: Cut, *pieces: bytes) -> tuple[list[Event], Response[Any]]:
    """The events and the answer of a stream that is cut after `pieces`, once their text has been read."""
    events: list[Event] = []
    text = b"".join(pieces).count(b'"content"')
    read = held(lambda: sum(isinstance(event, TextDelta) for event in events) == text)
    with Loopback(Reply(itertools.chain(pieces, read, [cut]))) as server:
        return events, generate(model(server), "Hi", on_event=events.append).run()


# The end comes after the close


async def ends(server: Loopback) -> list[tuple[str, bool]]:
    """The terminals of one call, each with whether its connection had been closed or had become idle before."""
    seen: list[tuple[str, bool]] = []

    def note(kind: str) -> None:
        seen.append((kind, is_settled(server)))

    stream_generate(model(server), "Hi").subscribe(
        on_error=lambda error: note(type(error).__name__), on_completed=lambda: note("completed")
    )
    await until(lambda: bool(seen))
    return seen


def is_settled(server: Loopback) -> bool:
    """Whether the server sees its one connection closed within the bound, though the loop of the call stands still."""
    try:
        server.wait_until(lambda: server.open_count == 0)
    except TimeoutError:
        return False
    return True


CLOSED_EARLY = {
    "an endless error body": Reply(endless(lambda i: b"x" * 60_000), status=500),
    "a frame that is no JSON": Reply([chat_chunk("a"), b"data: {oops\n\n", STALL]),
    "an end marker, then silence": Reply([*chat("a"), STALL]),
}


@pytest.mark.parametrize("name", CLOSED_EARLY)
def test_the_terminal_comes_after_the_close(name: str) -> None:
    with Loopback(CLOSED_EARLY[name]) as server:
        ((_, settled),) = asyncio.run(ends(server))
    assert settled


def test_at_on_completed_the_connection_is_free_for_the_next_call() -> None:
    """A call that is made inside on_completed uses the same connection."""

    async def main() -> None:
        done: list[str] = []
        engine = model(server)

        def again() -> None:
            generate(engine, "Hi").subscribe(lambda response: done.append(response.output_text))

        stream_generate(engine, "Hi").subscribe(on_completed=again)
        await until(lambda: done == ["Hello"])
        assert len(server.connections) == 1

    with Loopback(Reply(chat("Hello"))) as server:
        asyncio.run(main())


def test_an_error_status_leaves_the_connection_usable() -> None:
    async def main() -> None:
        engine = model(server)
        with pytest.raises(AdapterError):
            await generate(engine, "Hi")
        assert (await generate(engine, "Hi")).output_text == "Hello"
        assert len(server.connections) == 1

    with Loopback([Reply.of_json({"error": {"message": "no"}}, 400), Reply(chat("Hello"))]) as server:
        asyncio.run(main())


def test_the_end_of_the_body_is_not_waited_for_long() -> None:
    """The answer is complete with its end marker; a server may hold the body open."""

    async def app(world: World) -> float:
        response = await generate(model(world.serve(Reply([*chat("Hello"), STALL]))), "Hi")
        assert response.output_text == "Hello"
        return asyncio.get_running_loop().time()

    assert simulate(app, faults=()).value == pytest.approx(DRAIN_SECONDS, abs=0.1)


# No answer


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_a_refused_connection_is_a_network_error(transport: str) -> None:
    url = f"http://127.0.0.1:{unused_port()}"
    errors: list[Exception] = []

    async def main() -> None:
        engine = Engine(OpenAIChat(base_url=url), model="m", retry=False)
        stream_generate(engine, "Hi").subscribe(on_error=errors.append)
        await until(lambda: bool(errors))

    asyncio.run(main())
    (error,) = errors
    assert isinstance(error, AdapterError)
    assert (error.reason, error.provider, error.status) == ("network_error", "openai", None)
    assert url in error.message
    assert type(error.__context__).__name__ == {"httpx": "ConnectError", "aiohttp": "ConnectTimeout"}[transport]


@pytest.mark.parametrize("reply", [Reply([Cut.FIN]), Reply([Cut.RESET])], ids=["fin", "reset"])
def test_a_stream_cut_before_its_first_event(reply: Reply) -> None:
    """The headers have come: it is a stream, and it ends with an ErrorEvent."""
    response = answer(reply)
    assert (response.finish_reason, response.output_text) == ("error", "")
    assert response.error is not None
    assert response.error.reason == "truncated"


def test_silence_before_the_headers_is_a_timeout() -> None:
    error = failure(SILENT, timeout=1.0)
    assert (error.reason, type(error.__context__).__name__) == ("timeout", "ReadTimeout")


def test_the_calls_timeout_wins_over_the_adapters() -> None:
    seconds, error = simulated(SILENT, 60.0, timeout=5.0)
    assert seconds == pytest.approx(5.0, abs=0.1)
    assert isinstance(error, AdapterError)
    assert "within" in error.message


@pytest.mark.parametrize("url", ["http://[", "no-scheme", "ftp://example.invalid", "http://exa mple.invalid:x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises((AdapterError, ValidationError)) as caught:
        generate(Engine(OpenAIChat(base_url=url), model="m", retry=False), "Hi").run()
    assert caught.value.reason in ("invalid_option", "invalid_request", "network_error")


# A refusal


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (302, "invalid_request"),
        (400, "invalid_request"),
        (401, "authentication_failed"),
        (404, "invalid_request"),
        (408, "timeout"),
        (429, "rate_limited"),
        (500, "provider_unavailable"),
        (503, "provider_unavailable"),
        (529, "provider_unavailable"),
    ],
)
def test_a_status_and_its_body_become_the_error(status: int, reason: str) -> None:
    body = {"error": {"message": "Not so.", "type": "whatever", "code": "c17"}}
    error = failure(Reply.of_json(body, status, retry_after="7", x_request_id="req-1", location="/elsewhere"))
    message = error.message.partition(" (http")[0].removesuffix(" (openai, model m)")
    assert (error.reason, message, error.provider) == (reason, "Not so.", "openai")
    assert (error.status, error.code, error.retry_after, error.request_id) == (status, "c17", 7.0, "req-1")


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>" + b"x" * 5_000_000, b"{" * 2_000_000, b"\xff\xfe", b"null", b"[]", b'"busy"', b'{"error": null}'],
    ids=["empty", "huge html", "huge no json", "no text", "null", "list", "string", "null error"],
)
def test_any_error_body_is_an_error_of_its_status(body: bytes) -> None:
    error = failure(Reply(body, status=503))
    assert (error.reason, error.status) == ("provider_unavailable", 503)
    assert len(str(error)) < 3000


@pytest.mark.parametrize(
    "body",
    [[b'{"error": {"mess', Cut.RESET], [b"x", Cut.FIN], endless(lambda i: b"x" * 60_000)],
    ids=["reset", "fin", "endless"],
)
def test_an_error_body_that_breaks_off_keeps_its_status(body: Any) -> None:
    assert failure(Reply(body, status=500)).status == 500


def test_an_error_body_that_stalls_is_given_up() -> None:
    seconds, error = simulated(Reply([b"busy", STALL], status=503), 60.0)
    assert seconds == pytest.approx(ERROR_BODY_SECONDS, abs=0.1)
    assert isinstance(error, AdapterError)
    assert error.status == 503


# An answer that breaks


@pytest.mark.parametrize("cut", Cut)
def test_a_stream_cut_in_the_middle_keeps_what_came(cut: Cut) -> None:
    events, _ = cut_once_read(cut, chat_chunk("Hel"), chat_chunk("lo"))
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["Hel", "lo"]
    assert isinstance(events[-1], ErrorEvent)
    assert isinstance(events[-1].error, StreamError)
    assert events[-1].error.reason == "truncated"
    assert [type(event).__name__ for event in events[-2:]] == ["TextCompleted", "ErrorEvent"]


def test_a_cut_streams_response_has_text_and_error() -> None:
    _, response = cut_once_read(Cut.RESET, chat_chunk("Hello"))
    assert (response.output_text, response.finish_reason) == ("Hello", "error")
    assert response.error is not None
    assert response.error.reason == "truncated"
    assert response.error.__context__ is not None
    with pytest.raises(StreamError):
        response.raise_for_error()


def test_an_end_without_its_marker_is_truncated() -> None:
    response = answer(Reply([chat_chunk("Hello")]))
    assert (response.output_text, response.error and response.error.reason) == ("Hello", "truncated")


def test_a_cut_after_the_finish_reason_is_no_error() -> None:
    _, response = cut_once_read(Cut.RESET, chat_chunk("Hello") + chat_finish())
    assert (response.output_text, response.finish_reason, response.error) == ("Hello", "stop", None)


def test_a_cut_in_the_middle_names_its_stream() -> None:
    _, response = cut_once_read(Cut.RESET, chat_chunk("Hello"))
    assert (response.output_text, response.error.reason) == ("Hello", "truncated")
    assert re.match(r"the stream from http://\S+/chat/completions was cut off: ", response.error.message)


def test_silence_in_the_middle_is_a_timeout(transport: str) -> None:
    seconds, response = simulated(Reply([chat_chunk("Hello"), STALL]), 5.0)
    assert seconds == pytest.approx(5.0, abs=0.1)
    assert isinstance(response, Response)
    assert isinstance(response.error, StreamError)
    limit = "the timeout of 5 s" if transport == "httpx" else "the timeout"  # aiohttp watches too, and is not exact
    assert f"completions sent nothing for longer than {limit}" in response.error.message
    assert (response.output_text, response.finish_reason) == ("Hello", "error")
    assert response.error.reason == "timeout"


def test_a_slow_stream_is_no_silent_one() -> None:
    """The timeout is between two reads, not for the whole."""
    words = [each for i in range(8) for each in (chat_chunk(str(i)), Pause(4.0))]
    _, response = simulated(Reply([*words, chat_finish(), DONE]), 5.0)
    assert isinstance(response, Response)
    assert response.output_text == "01234567"


def test_a_frame_that_is_no_json() -> None:
    response = answer(Reply([chat_chunk("Hello"), b"data: {oops\n\n", chat_chunk("never")]))
    assert response.output_text == "Hello"
    assert isinstance(response.error, StreamError)
    assert response.error.reason == "malformed_event"


def test_an_oversized_frame() -> None:
    piece = b"x" * 2**20
    response = answer(Reply([chat_chunk("Hello"), b"data: ", *[piece] * 17, STALL]))
    assert response.output_text == "Hello"
    assert isinstance(response.error, StreamError)
    assert response.error.reason == "oversized_frame"


def test_a_body_in_gzip_is_read() -> None:
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    assert answer(Reply(gzip.compress(b"".join(chat("Hello"))), headers=headers)).output_text == "Hello"


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("encoding", [{}, {"content-encoding": "gzip"}])
def test_an_answer_that_a_mock_transport_has_read_already(library: Any, encoding: dict[str, str]) -> None:
    """As whoever tests an application of rxllm gives it."""
    body = b"".join(chat("Hello"))
    headers = {"content-type": "text/event-stream", **encoding}

    def answered(request: Any) -> Any:
        return library.Response(200, headers=headers, content=gzip.compress(body) if encoding else body)

    adapter = OpenAIChat(api_key=KEY, client=lambda: library.AsyncClient(transport=library.MockTransport(answered)))
    response = generate(Engine(adapter, model="m", retry=False), "Hi").run()
    assert (response.output_text, response.finish_reason) == ("Hello", "stop")


def test_a_body_that_only_says_it_is_gzip() -> None:
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    response = answer(Reply(b"".join(chat("Hello")), headers=headers))
    assert response.finish_reason == "error"
    assert response.error is not None


def test_an_error_inside_the_stream_ends_it_and_closes_the_connection() -> None:
    frame = b'data: {"error": {"message": "overloaded", "type": "overloaded_error"}}\n\n'
    events: list[Event] = []
    assert_closes(
        lambda server: stream_generate(model(server), "Hi").pipe(ops.tap(events.append)).run(),
        Reply([chat_chunk("Hello"), frame, STALL]),
    )
    assert isinstance(events[-1], ErrorEvent)
    assert isinstance(events[-1].error, AdapterError)
    assert events[-1].error.reason == "provider_unavailable"


def test_nothing_after_the_end_is_delivered() -> None:
    with Loopback(Reply([*chat("Hello"), chat_chunk("more"), *chat("again")])) as server:
        events = list(stream_generate(model(server), "Hi"))
    assert isinstance(events[-1], MessageCompleted)
    assert sum(isinstance(event, MessageCompleted) for event in events) == 1
    assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == "Hello"


def test_each_subscription_is_its_own_request() -> None:
    with Loopback(Reply(chat("Hello"))) as server:
        call = generate(model(server), "Hi")
        assert server.requests == []
        assert [call.run().output_text for _ in range(3)] == ["Hello"] * 3
        assert len(server.requests) == 3


# The key is nowhere


def echo(status: int) -> Callable[[Any], Reply]:
    def reply(request: Any) -> Reply:
        said = f"Incorrect API key provided: {request.headers['authorization']}"
        return Reply.of_json({"error": {"message": said, "param": request.headers["authorization"]}}, status)

    return reply


FAILURES: dict[str, Any] = {
    "an echo of the key": echo(401),
    "an echo of the key, retried": echo(503),
    "a cut": Reply([chat_chunk("a"), Cut.RESET]),
    "a cut before the first event": Reply([Cut.RESET]),
    "a timeout": Reply(before=STALL),
    "a timeout in the middle": Reply([chat_chunk("a"), STALL]),
    "no JSON": Reply([b"data: {oops\n\n"]),
    "a redirect": Reply.of_json({}, 302, location="http://127.0.0.1/"),
    "no answer": None,
}


@pytest.mark.parametrize("name", FAILURES)
def test_no_failure_shows_the_key(name: str, caplog: pytest.LogCaptureFixture) -> None:
    from rxllm import RetryPolicy

    caplog.set_level(logging.DEBUG)
    with Loopback(FAILURES[name] or Reply()) as server:
        url = server.url if FAILURES[name] else f"http://127.0.0.1:{unused_port()}"
        adapter = OpenAIChat(base_url=url, api_key=KEY, timeout=1.0)
        engine = Engine(adapter, model="m", retry=RetryPolicy(max_attempts=2, base_delay=0, jitter=0))
        caught: Any = None
        try:
            caught = generate(engine, "Hi").run().error
        except Exception as error:
            caught = error
        assert server.requests == [] or server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert caught is not None
    shown = [repr(adapter), repr(engine), caplog.text]
    error: Any = caught
    while error is not None:
        shown += [repr(error), str(error), repr(vars(error))]
        error = error.__cause__
    assert [each for each in shown if KEY in each] == []


@pytest.mark.parametrize("key", [f"{KEY}\n{KEY}", f"{KEY}\x00", f"{KEY}…"], ids=["newline", "nul", "no ASCII"])
def test_a_key_that_no_header_may_hold_is_not_shown(key: str) -> None:
    with Loopback(Reply(chat("Hello"))) as server, pytest.raises(Exception, match="authorization") as caught:
        generate(model(server, api_key=key), "Hi").run()
    error: Any = caught.value
    while error is not None:
        assert KEY not in f"{error!r} {error} {vars(error)!r}"
        error = error.__cause__ or error.__context__


def test_white_space_around_a_key_is_not_part_of_it() -> None:
    with Loopback(Reply(chat("Hello"))) as server:
        generate(model(server, api_key=f" {KEY}\n"), "Hi").run()
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
