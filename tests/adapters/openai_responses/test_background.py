"""Answers that the provider keeps: after a dropped connection, the rest is read, and nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import AdapterError, ErrorEvent, Event, MessageCompleted, StreamError, TextDelta, stream_generate
from rxllm import operators as ops
from rxllm.adapters import AzureResponses, Local, OpenAIChat, OpenAIResponses
from rxllm.adapters.local.background import CountingDecoder, LocalAnswer
from rxllm.adapters.openai_responses.background import BackgroundDecoder
from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.events import ToolCallCompleted
from rxllm.http import pools, reattach
from rxllm.telemetry import CallFinished, CallStarted, FirstToken, Reattached
from rxllm.testing import World, simulate
from rxllm.testing.loopback import STALL, Cut, Loopback, Pause, Reply
from tests.adapters.openai_responses.keeping import (
    AT_ONCE,
    SCRIPTS,
    Keeper,
    engine,
    events_of,
    frames_after,
    frames_of,
    number,
    number_of,
    recorded,
    text,
)
from tests.adapters.openai_responses.support import (
    COMPLETED,
    CREATED,
    added,
    begun,
    delta,
    frame,
    function,
    message,
    response,
)
from tests.closing import assert_closes
from tests.examples import share
from tests.waiting import until

pytestmark = pytest.mark.sockets

BACKGROUND = {"background": True}
PRIMES = number(text("2, ", "3, ", "5."))
SIZE = len(b"".join(PRIMES))
ENDS = [0, *accumulate(map(len, PRIMES))]
"""The number of bytes before each frame."""

CUT = ENDS[5]
"""The number of bytes up to the second piece of text."""

WHOLE = events_of(Keeper(PRIMES))


def error_of(events: list[Event]) -> StreamError:
    last = events[-1]
    assert isinstance(last, ErrorEvent)
    assert isinstance(last.error, StreamError)
    return last.error


def text_of(events: list[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, TextDelta))


# Cuts

PARTS = pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.judges) for part in range(1, 8))])
"""Every eighth cut, and at length all others."""


def decode(decoder: ResponsesDecoder, *connections: bytes) -> list[Event]:
    events: list[Event] = []
    for index, data in enumerate(connections):
        if index and isinstance(decoder, BackgroundDecoder):
            decoder.drop_partial()
            decoder.resume()
        events += decoder.feed(data)
    return events + decoder.close()


@PARTS
def test_the_recorded_answer_and_its_recorded_rest_equal_the_whole_answer_for_every_cut(part: int) -> None:
    body, rest = recorded()
    frames, rest_frames = frames_of(body), frames_of(rest)
    assert (len(frames), len(rest_frames)) == (336, 334)
    whole = decode(ResponsesDecoder(), body)
    assert decode(BackgroundDecoder(), body) == whole
    for kept in range(2 + part, 336, 8):
        partial = frames[kept][: len(frames[kept]) // 2]
        first, then = b"".join(frames[:kept]) + partial, b"".join(rest_frames[kept - 2 :])
        assert decode(BackgroundDecoder(), first, then) == whole, kept


def assert_equals_uncut(frames: list[bytes], whole: list[Event], *cuts: int) -> None:
    keeper = Keeper(frames, cuts)
    assert events_of(keeper, retry=AT_ONCE | {"max_attempts": 4}) == whole, cuts
    assert len(keeper.posts) == 1
    assert keeper.stops == []
    assert len(keeper.gets) == len(cuts)


@pytest.mark.judges
@pytest.mark.parametrize("part", range(5))
def test_an_answer_that_is_cut_after_any_frame_equals_the_whole_answer(part: int) -> None:
    frames = frames_of(recorded()[0])
    whole = events_of(Keeper(frames))
    ends = list(accumulate(map(len, frames)))
    assert len(ends) == 336
    for end in ends[part:-1:5]:
        assert_equals_uncut(frames, whole, end)


@PARTS
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_decoder_that_is_cut_at_any_byte_reads_the_whole_answer(name: str, part: int) -> None:
    frames = number(SCRIPTS[name])
    body = b"".join(frames)
    whole = decode(BackgroundDecoder(), body)
    for cut in range(len(frames[0]) + part, len(body), 8):
        decoder = BackgroundDecoder()
        events = decoder.feed(body[:cut])
        assert decoder.last is not None
        decoder.drop_partial()
        decoder.resume()
        assert events + decode(decoder, b"".join(frames_after(frames, decoder.last))) == whole, cut


@pytest.mark.judges
@pytest.mark.parametrize("part", range(share(4)))
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_answer_that_is_cut_at_any_byte_equals_the_whole_answer(name: str, part: int) -> None:
    frames = number(SCRIPTS[name])
    whole = events_of(Keeper(frames))
    cuts = range(len(frames[0]) + part, len(b"".join(frames)), 4)

    async def main() -> None:
        events = stream_generate(engine(server), "Hi").to_list()
        for index, cut in enumerate(cuts):
            keeper.cuts = iter([cut])
            assert await events == whole, cut
            assert (len(keeper.posts), len(keeper.gets), keeper.stops) == (index + 1, index + 1, []), cut

    with Loopback(keeper := Keeper(frames, renames=False)) as server:
        asyncio.run(main())


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_an_answer_that_is_cut_anywhere_up_to_three_times_equals_the_whole_answer(data: st.DataObject) -> None:
    frames = number(SCRIPTS[data.draw(st.sampled_from(sorted(SCRIPTS)))])
    first = data.draw(st.integers(len(frames[0]), len(b"".join(frames)) - 1))
    more = data.draw(st.lists(st.integers(0, 40), max_size=2))  # may bring no frame at all
    assert_equals_uncut(frames, events_of(Keeper(frames)), first, *more)


@pytest.mark.parametrize("end", [Cut.FIN, Cut.RESET, None])
def test_every_kind_of_end_before_the_last_frame_is_a_cut(end: Cut | None) -> None:
    keeper = Keeper(PRIMES, [ENDS[5] + 9, 300], ends=[end])
    assert events_of(keeper) == WHOLE
    assert (len(keeper.posts), keeper.gets[0], len(keeper.gets)) == (1, 4, 2)


@pytest.mark.parametrize("missing", range(4))
def test_a_last_frame_without_its_blank_line_is_read(missing: int) -> None:
    for index, end in enumerate(ENDS[1:-1]):
        keeper = Keeper(PRIMES, [end - missing], ends=[None])
        seen = index if missing < 3 else index - 1  # without its last brace, the frame is dropped
        assert text_of(events_of(keeper)) == "2, 3, 5.", (index, missing)
        assert (len(keeper.posts), keeper.gets, keeper.stops) == ((1, [seen], []) if seen >= 0 else (2, [], []))


def test_a_cut_in_the_first_frame_asks_again_since_no_id_has_arrived() -> None:
    keeper = Keeper(PRIMES, [ENDS[1] - 1])
    assert text_of(events_of(keeper)) == "2, 3, 5."
    assert (len(keeper.posts), keeper.gets) == (2, [])


def test_raw_frames_arrive_once() -> None:
    def raw(keeper: Keeper) -> list[Event]:
        with Loopback(keeper) as server:
            return stream_generate(engine(server), "Hi", include_raw_chunks=True).to_list().run()

    assert raw(Keeper(PRIMES, [CUT - 3])) == raw(Keeper(PRIMES))


# Awkward servers


def replies(*rests: Any) -> Any:
    """Return a function that answers the first requests for the rest with `rests`, and later ones by the rules."""
    remaining = list(rests)

    def rest(frames: list[bytes], after: int) -> Any:
        reply = remaining.pop(0) if remaining else None
        return frames_after(frames, after) if reply is None else reply(frames, after) if callable(reply) else reply

    return rest


BUSY = Reply.of_json({"error": {"message": "busy", "type": "server_error"}}, 503)
REFUSED: dict[str, tuple[Reply, str]] = {
    "too old": (
        Reply.of_json(
            {"error": {"message": "This response can no longer be streamed because it is more than 5 minutes old."}},
            400,
        ),
        "more than 5 minutes old",
    ),
    "forgotten": (Reply.of_json({"error": {"message": "Response not found."}}, 404), "Response not found"),
    "another key": (Reply.of_json({"error": {"message": "Incorrect API key provided"}}, 401), "Incorrect API key"),
    "a wrong cursor": (Reply.of_json({"error": {"message": "Invalid 'starting_after'."}}, 400), "starting_after"),
    "a web page": (Reply([b"<html>Log in</html>"], headers={"Content-Type": "text/html"}), "returned a web page"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_rest_that_is_refused_ends_the_stream_as_a_cut_does(name: str, caplog: pytest.LogCaptureFixture) -> None:
    reply, words = REFUSED[name]
    keeper = Keeper(PRIMES, [CUT], rest=replies(reply))
    events = events_of(keeper)
    error = error_of(events)
    assert error.reason == "truncated"
    assert words in error.message
    assert isinstance(error.__cause__, AdapterError)
    assert text_of(events) == "2, 3, "
    assert (len(keeper.posts), len(keeper.gets), keeper.stops) == (1, 1, ["r1"])
    assert "cannot be read" in caplog.text


def test_a_rest_that_is_refused_before_any_content_is_asked_for_again() -> None:
    keeper = Keeper(PRIMES, [ENDS[3]], rest=replies(REFUSED["too old"][0]))
    assert text_of(events_of(keeper)) == "2, 3, 5."
    assert (len(keeper.posts), len(keeper.gets), keeper.stops) == (2, 1, ["r1"])


@pytest.mark.parametrize(
    "failures",
    [
        [BUSY, BUSY],
        [Reply([Cut.RESET]), BUSY],
        [Reply(b""), Reply([])],
        [Reply(b'{"id": "r1", "object": "resp')] * 2,
    ],
)
def test_a_failed_connection_is_an_attempt(failures: list[Reply]) -> None:
    keeper = Keeper(PRIMES, [CUT], rest=replies(*failures))
    assert events_of(keeper, retry=AT_ONCE | {"max_attempts": 4}) == WHOLE
    keeper = Keeper(PRIMES, [CUT], rest=replies(*failures))
    events = events_of(keeper, retry=AT_ONCE | {"max_attempts": 3})
    assert error_of(events).reason == "truncated"
    assert text_of(events) == "2, 3, "
    assert (len(keeper.posts), len(keeper.gets), keeper.stops) == (1, 2, ["r1"])


# Answers that are not streamed


def document(status: str, text: str = "", **fields: Any) -> Reply:
    output = [message("m1", text)] if text else []
    whole = {"id": "r1", "object": "response", "model": "m", "status": status, "output": output, "background": True}
    return Reply.of_json(whole | fields)


@pytest.fixture
def polls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reattach, "POLL_SECONDS", 0.0)


@pytest.mark.parametrize("count", range(1, len(PRIMES)))
def test_a_complete_document_is_the_rest_of_the_answer(count: int) -> None:
    keeper = Keeper(PRIMES, [ENDS[count]], rest=replies(document("completed", "2, 3, 5.")))
    events = events_of(keeper, retry=AT_ONCE | {"max_attempts": 2})
    assert text_of(events) == "2, 3, 5."
    assert events[-1] == WHOLE[-1]
    assert (len(keeper.posts), len(keeper.gets), keeper.stops) == (1, 1, [])


CALLS = number(SCRIPTS["two calls"])


@pytest.mark.parametrize("count", range(1, len(CALLS)))
def test_a_complete_document_is_the_rest_of_the_calls(count: int) -> None:
    calls = [function("i0", "a", '{"x":1}') | {"name": "f"}, function("i1", "b", '{"x":2}') | {"name": "f"}]
    rest = replies(document("completed", output=calls))
    events = events_of(Keeper(CALLS, [len(b"".join(CALLS[:count]))], rest=rest))
    assert [event.arguments for event in events if isinstance(event, ToolCallCompleted)] == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_document_of_a_failed_answer_ends_it_with_its_error(status: str) -> None:
    error = {"code": "server_error", "message": "out of primes"} if status == "failed" else None
    keeper = Keeper(PRIMES, [CUT], rest=replies(document(status, error=error)))
    last = events_of(keeper)[-1]
    assert isinstance(last, ErrorEvent)
    assert ("out of primes" in str(last.error)) == (status == "failed")
    assert (len(keeper.posts), len(keeper.gets), keeper.stops) == (1, 1, [])


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_a_document_of_an_answer_that_is_not_complete_is_asked_for_again(polls_at_once: None, status: str) -> None:
    pending = document(status, "2, 3" if status == "in_progress" else "")
    keeper = Keeper(PRIMES, [CUT], rest=replies(*[pending] * 5))
    assert events_of(keeper, retry=AT_ONCE | {"max_attempts": 2}) == WHOLE
    assert (len(keeper.posts), keeper.gets, keeper.stops) == (1, [4] * 6, [])


class Queuing(Keeper):
    """Answers every request with a document of a queued answer, whose frames are read by id."""

    def _reply(self, frames: Any) -> Reply:
        return document("queued") if not self.gets else super()._reply(frames)


def test_a_queued_answer_is_read_by_its_id(polls_at_once: None) -> None:
    keeper = Queuing(PRIMES, [CUT])
    assert events_of(keeper) == WHOLE
    assert (len(keeper.posts), keeper.gets, keeper.stops) == (1, [-1, 4], [])


def test_a_queued_answer_that_cannot_be_read_by_its_id_is_an_error_and_is_stopped() -> None:
    keeper = Queuing(PRIMES)
    assert error_of(events_of(keeper, retry=False)).reason == "truncated"
    assert (len(keeper.posts), keeper.gets, keeper.stops) == (1, [], ["r1"])
    assert error_of(events_of(document("queued", background=False), retry=False)).reason == "truncated"


def test_an_answer_that_stays_pending_is_given_up(polls_at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reattach, "MOST_POLLED_SECONDS", 0.0)
    keeper = Keeper(PRIMES, [CUT], rest=replies(*[document("queued")] * 5))
    assert error_of(events_of(keeper, retry=AT_ONCE | {"max_attempts": 3})).reason == "truncated"
    assert (len(keeper.posts), keeper.gets, keeper.stops) == (1, [4, 4], ["r1"])


def test_new_events_reset_the_count_of_attempts() -> None:
    keeper = Keeper(PRIMES, [len(part) + 1 for part in PRIMES[:-1]])
    assert len(PRIMES) > 4
    assert events_of(keeper, retry=AT_ONCE | {"max_attempts": 4}) == WHOLE
    assert (len(keeper.posts), keeper.gets) == (1, list(range(len(PRIMES) - 1)))


def test_without_retries_a_cut_is_an_error() -> None:
    keeper = Keeper(PRIMES, [CUT])
    assert error_of(events_of(keeper, retry=False)).reason == "truncated"
    assert (len(keeper.posts), keeper.gets, keeper.stops) == (1, [], ["r1"])


def test_events_that_were_seen_before_are_dropped() -> None:
    for back in range(1, 5):
        keeper = Keeper(PRIMES, [CUT], rest=lambda frames, after, back=back: frames_after(frames, after - back))
        assert events_of(keeper) == WHOLE
    whole_again = Keeper(PRIMES, [CUT], rest=lambda frames, _: frames)
    assert events_of(whole_again) == WHOLE


@pytest.mark.parametrize("gap", [1, 2])
def test_a_gap_is_an_error(gap: int) -> None:
    keeper = Keeper(PRIMES, [CUT], rest=lambda frames, after: frames_after(frames, after + gap))
    events = events_of(keeper)
    assert error_of(events).reason == "truncated"
    assert "event 5 of the answer is missing" in error_of(events).message
    assert text_of(events) == "2, 3, "
    assert (len(keeper.gets), keeper.stops) == (1, ["r1"])


def test_a_gap_inside_the_rest_is_an_error() -> None:
    keeper = Keeper(PRIMES, [ENDS[4]], rest=lambda frames, after: [frames[after + 1], *frames[after + 3 :]])
    assert "event 5 of the answer is missing" in error_of(events_of(keeper)).message


@pytest.mark.parametrize(
    "change",
    [
        lambda frames: [part.replace(b'"sequence_number"', b'"n"') for part in frames],
        lambda frames: [part.replace(b'"sequence_number":', b'"sequence_number":0,"n":') for part in frames],
        lambda frames: [part.replace(b'"model":"m"', b'"model":"m","background":false') for part in frames],
        lambda frames: [part.replace(b'"id":"r1"', b'"id":1') for part in frames],
    ],
)
def test_a_server_that_cannot_resume_is_read_as_usual(change: Any) -> None:
    frames = change(PRIMES)
    assert text_of(events_of(Keeper(frames))) == "2, 3, 5."
    keeper = Keeper(frames, [len(b"".join(frames[:5]))])
    assert error_of(events_of(keeper)).reason == "truncated"
    assert (len(keeper.posts), keeper.gets) == (1, [])


def test_an_answer_that_is_not_streamed_is_read_as_usual() -> None:
    whole = {"id": "r1", "object": "response", "model": "m", "status": "completed", "output": []}
    events = events_of(Reply.of_json(whole))
    assert isinstance(events[-1], MessageCompleted)


def test_without_the_option_a_cut_is_an_error() -> None:
    keeper = Keeper(PRIMES, [CUT])
    assert error_of(events_of(keeper, params={})).reason == "truncated"
    assert (len(keeper.posts), keeper.gets, keeper.stops) == (1, [], [])


def test_each_request_uses_the_current_key_and_the_query_of_the_base_url() -> None:
    keys = iter("abcd")
    with Loopback(Keeper(PRIMES, [ENDS[4], 20])) as server:
        adapter = AzureResponses(base_url=f"{server.url}/openai/v1?api-version=preview", api_key=lambda: next(keys))
        events = stream_generate(adapter, "Hi", model="m", options=BACKGROUND, retry=AT_ONCE)
        assert events.to_list().run() == WHOLE
    assert [request.headers["api-key"] for request in server.requests] == ["a", "b", "c"]
    assert server.requests[1].path == "/openai/v1/responses/r1?stream=true&starting_after=3&api-version=preview"


@pytest.mark.parametrize(
    ("path", "query"),
    [("/openai/v1", ""), ("/openai/v1", "api-version=preview"), ("/openai", "api-version=2025-04-01")],
)
def test_azure_is_asked_for_the_rest_and_to_stop_at_its_own_addresses(
    monkeypatch: pytest.MonkeyPatch, path: str, query: str
) -> None:
    keeper = Keeper(PRIMES, [ENDS[4], 20], ends=[Cut.RESET, STALL])
    with Loopback(keeper) as server:
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", f"{server.url}{path}" + (f"?{query}" if query else ""))
        monkeypatch.setenv("AZURE_OPENAI_API_KEY", "k")
        asked = rxllm.Engine("azure-responses:mine", params={"options": BACKGROUND}, retry=AT_ONCE)
        subscription = stream_generate(asked, "Hi").subscribe()
        server.wait_until(lambda: len(server.requests) == 2)
        subscription.dispose()
        wait_for_stop(keeper, server)
    requests = [(request.method, request.path, request.headers["api-key"]) for request in server.requests]
    first = f"?{query}" if query else ""
    more = f"&{query}" if query else ""
    assert requests == [
        ("POST", f"{path}/responses{first}", "k"),
        ("GET", f"{path}/responses/r1?stream=true&starting_after=3{more}", "k"),
        ("POST", f"{path}/responses/r1/cancel{first}", "k"),
    ]
    assert keeper.posts[0]["model"] == "mine"


def test_no_key_reaches_an_error_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    key = "sk-sentinel-0123456789"
    refusal = Reply.of_json({"error": {"message": f"Incorrect API key provided: {key}"}}, 401)
    with Loopback(Keeper(PRIMES, [CUT], rest=replies(refusal), stop=refusal)) as server:
        adapter = OpenAIResponses(base_url=server.url, api_key=key)
        events = stream_generate(adapter, "Hi", model="m", options=BACKGROUND, retry=AT_ONCE).to_list().run()
    assert key not in str(error_of(events)) + repr(error_of(events).__cause__) + caplog.text


# Disposing


def wait_for_stop(keeper: Keeper, server: Loopback, count: int = 1) -> None:
    server.wait_until(lambda: len(keeper.stops) >= count)


def test_a_dispose_stops_the_answer_and_closes_the_connection() -> None:
    with Loopback(keeper := Keeper(PRIMES, [CUT], ends=[STALL])) as server:
        for event in stream_generate(engine(server), "Hi"):
            if isinstance(event, TextDelta):
                break
        server.connections[0].wait_closed()
        wait_for_stop(keeper, server)
    assert (len(keeper.posts), keeper.gets, keeper.stops) == (1, [], ["r1"])


def test_a_dispose_just_before_the_loop_ends_stops_the_answer() -> None:
    async def main() -> None:
        async for event in stream_generate(engine(server), "Hi"):
            if isinstance(event, TextDelta):
                break

    with Loopback(keeper := Keeper(PRIMES, [CUT], ends=[STALL])) as server:
        asyncio.run(main())
        assert keeper.stops == ["r1"]


def test_a_dispose_during_a_wait_stops_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        subscription = stream_generate(engine(server, retry={"base_delay": 20.0}), "Hi").subscribe()
        await until(lambda: "asking for the rest in" in caplog.text)
        subscription.dispose()
        await until(lambda: keeper.stops == ["r1"])

    with Loopback(keeper := Keeper(PRIMES, [CUT])) as server:
        asyncio.run(main())
    assert keeper.gets == []


def test_a_complete_answer_is_not_stopped() -> None:
    for cuts in ([], [ENDS[5]]):
        keeper = Keeper(PRIMES, cuts)
        events_of(keeper)
        assert keeper.stops == []


@pytest.mark.parametrize("name", ["a failure", "an odd frame, and the limit"])
def test_an_answer_that_the_provider_ended_is_not_stopped(name: str) -> None:
    keeper = Keeper(number(SCRIPTS[name]))
    events_of(keeper, retry=False)
    assert keeper.stops == []


def test_an_answer_that_becomes_unreadable_is_stopped() -> None:
    frames = [*PRIMES[:5], b"data: {oops\n\n", *PRIMES[5:]]
    keeper = Keeper(frames)
    assert error_of(events_of(keeper)).reason == "malformed_event"
    assert keeper.stops == ["r1"]


def test_a_failed_stop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rxllm")
    with Loopback(keeper := Keeper(PRIMES, [CUT], stop=BUSY, ends=[STALL])) as server:

        async def main() -> None:
            stream = stream_generate(engine(server), "Hi").pipe(ops.tap(lambda event: None))
            async for _ in stream:
                break

        asyncio.run(main())
    assert keeper.stops == ["r1"]
    assert "openai did not stop the answer r1, which may still cost money: HTTP 503" in caplog.text


def test_a_subscriber_that_raises_stops_the_answer() -> None:
    def fail(event: Event) -> None:
        raise AdapterError("network_error", "not the transport's")

    with Loopback(keeper := Keeper(PRIMES, [ENDS[4], CUT], ends=[STALL])) as server:
        with pytest.raises(AdapterError, match="not the transport's"):
            stream_generate(engine(server), "Hi").pipe(ops.tap(fail, TextDelta)).run()
        wait_for_stop(keeper, server)
    assert len(keeper.gets) == 0


def test_a_timeout_of_the_call_stops_the_answer() -> None:
    async def timed_out(world: World) -> list[Event]:
        events = await stream_generate(engine(world.serve(keeper)), "Hi", timeout=5.0).to_list()
        await until(lambda: keeper.stops == ["r1"])
        return events

    keeper = Keeper(PRIMES, [CUT], ends=[STALL])
    run = simulate(timed_out, faults=())
    assert error_of(run.value).reason == "timeout"
    assert 5 < run.duration < 8


def test_a_silent_connection_is_replaced_after_the_timeout_of_the_adapter() -> None:
    async def replaced(world: World) -> list[Event]:
        adapter = OpenAIResponses(base_url=world.serve(keeper).url, api_key="k", timeout=5.0)
        return await stream_generate(adapter, "Hi", model="m", options=BACKGROUND, retry=AT_ONCE).to_list()

    keeper = Keeper(PRIMES, [CUT], ends=[STALL])
    run = simulate(replaced, faults=())
    assert run.value == WHOLE
    assert 5 < run.duration < 8
    assert (keeper.gets, keeper.stops) == ([4], [])


def positions() -> Iterator[int]:
    return (number for part in PRIMES if (number := number_of(part)) is not None)


def test_the_scripts_number_every_frame() -> None:
    assert list(positions()) == list(range(len(PRIMES)))


# Telemetry, and the timeline


class Paused(Keeper):
    """A `Keeper` that is cut off after a second, and sends the last frame of the rest a second late."""

    def _reply(self, frames: Any) -> Reply:
        if len(frames) == len(PRIMES):
            return Reply([*frames[:5], Pause(1.0), Cut.RESET])
        return Reply([*frames[:-1], Pause(1.0), frames[-1]])


async def timed_answer(world: World) -> tuple[list[Any], Any]:
    seen: list[Any] = []
    server = world.serve(Paused(PRIMES))
    patient = engine(server, retry={"base_delay": 3.0, "jitter": 0.0}, observers=[seen.append])
    return seen, await stream_generate(patient, "Hi").pipe(ops.timed()).to_list()


def test_observers_see_the_gap() -> None:
    seen, _ = simulate(timed_answer, faults=()).value
    assert [type(value) for value in seen] == [CallStarted, FirstToken, Reattached, CallFinished]
    started, _, reattached, finished = seen
    assert (reattached.id, reattached.request_id, reattached.model) == (started.id, started.request_id, "m")
    assert reattached.seconds == pytest.approx(3.0, abs=0.1)
    assert reattached.error.reason == "network_error"
    assert (finished.outcome, finished.details.attempts) == ("completed", 1)


def test_a_timeline_shows_the_gap() -> None:
    _, items = simulate(timed_answer, faults=()).value
    (row,) = rxllm.timeline(items).rows
    waiting, before, lost, after = row.bars
    assert [waiting.kind, before.kind, lost.kind, after.kind] == ["waiting", "text", "lost", "text"]
    seconds = [(bar.end or 0.0) - bar.start for bar in (before, lost, after)]
    assert seconds == pytest.approx([1.0, 3.0, 1.0], abs=0.1)
    assert lost.title.startswith("re-attached: ")
    assert "was cut off" in lost.title
    assert [len(bar.ticks) for bar in (before, lost, after)] == [2, 0, 1]


def test_an_answer_without_times_has_no_gaps_in_its_metadata() -> None:
    assert events_of(Keeper(PRIMES, [CUT])) == WHOLE


# Stops that could be missed


def test_a_wait_for_the_rest_uses_the_client(caplog: pytest.LogCaptureFixture) -> None:
    """A pool without calls may close its client during the wait."""

    async def main() -> None:
        adapter = OpenAIResponses(base_url=server.url, api_key="k")
        events = stream_generate(adapter, "Hi", model="m", options=BACKGROUND, retry={"base_delay": 20.0})
        subscription = events.subscribe()
        await until(lambda: "asking for the rest in" in caplog.text)
        assert pools._loads[adapter._clients.any()].calls == 1
        subscription.dispose()
        await until(lambda: keeper.stops == ["r1"])

    with Loopback(keeper := Keeper(PRIMES, [CUT])) as server:
        asyncio.run(main())


def test_closing_the_adapter_after_a_dispose_does_not_prevent_the_stop() -> None:
    async def main() -> None:
        adapter = OpenAIResponses(base_url=server.url, api_key="k")
        async for event in stream_generate(adapter, "Hi", model="m", options=BACKGROUND):
            if isinstance(event, TextDelta):
                break
        await adapter.aclose()

    with Loopback(keeper := Keeper(PRIMES, [CUT], ends=[STALL])) as server:
        asyncio.run(main())
        assert keeper.stops == ["r1"]


@pytest.mark.parametrize("chunks", [[b"".join(PRIMES[:3]), STALL], [PRIMES[0][:9], Pause(0.1), PRIMES[0][9:], STALL]])
def test_a_dispose_before_the_id_stops_the_answer_once_the_id_arrives(chunks: list[Any]) -> None:
    def answer(request: Any) -> Reply:
        cancels = request.path.endswith("/cancel")
        return Reply.of_json({"status": "cancelled"}) if cancels else Reply(chunks, before=0.2)

    async def disposed(world: World) -> tuple[list[str], list[Event]]:
        seen: list[Event] = []
        server = world.serve(answer)
        subscription = stream_generate(engine(server), "Hi").subscribe(seen.append)
        await until(lambda: len(server.requests) == 1)
        subscription.dispose()
        await until(lambda: len(server.requests) == 2 and server.connections[0].closed_at is not None)
        return [request.path for request in server.requests], seen

    paths, seen = simulate(disposed, faults=()).value
    assert [*dict.fromkeys(paths)] == ["/responses", "/responses/r1/cancel"]  # the end of the loop repeats a stop
    assert (paths.count("/responses"), seen) == (1, [])


def test_a_dispose_is_not_delayed_if_the_server_keeps_no_answer() -> None:
    frames = [part.replace(b'"id":"r1"', b'"id":"r1","background":false') for part in PRIMES]

    async def leave(server: Loopback) -> None:
        await stream_generate(engine(server), "Hi").take(1).to_list()

    assert_closes(leave, Reply([b"".join(frames[:4]), STALL]))


def test_a_dispose_before_the_id_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reattach, "ID_SECONDS", 0.1)

    async def main() -> None:
        subscription = stream_generate(engine(server), "Hi").subscribe()
        await until(lambda: len(server.requests) == 1)
        subscription.dispose()
        await until(lambda: "before openai sent the answer's id" in caplog.text)

    with Loopback(Keeper(PRIMES, [0], ends=[STALL])) as server:
        asyncio.run(main())


def test_a_stop_of_an_unknown_answer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    keeper = Keeper([*PRIMES[:5], b"data: {oops\n\n"], stop=REFUSED["forgotten"][0])
    events_of(keeper)
    assert keeper.stops == ["r1"]
    assert "may still cost money: HTTP 404" in caplog.text


def test_an_error_of_a_connection_does_not_end_the_answer() -> None:
    failure = b'event: error\ndata: {"type":"error","error":{"code":"server_error","message":"again"}}\n\n'
    keeper = Keeper(PRIMES, [CUT], rest=lambda frames, after: [failure])
    assert isinstance(events_of(keeper)[-1], ErrorEvent)
    assert keeper.stops == ["r1"]


def test_the_end_marker_ends_the_answer() -> None:
    keeper = Keeper([*PRIMES[:-1], b"data: [DONE]\n\n"])
    events_of(keeper)
    assert (keeper.gets, keeper.stops) == ([], [])


@pytest.mark.parametrize("id", ["", ".", "..", "../x?y", "a/../b", "x" * 501, f"{'x' * 60_000}!"])
def test_an_id_that_is_long_or_would_change_the_path_is_not_used(id: str) -> None:
    frames = [part.replace(b'"id":"r1"', b'"id":"%b"' % id.encode()) for part in PRIMES]
    with Loopback(Reply([b"".join(frames[:5]), Cut.RESET])) as server:
        stream_generate(engine(server), "Hi").to_list().run()
    assert [request.path for request in server.requests] == ["/responses"]


def test_connections_that_bring_only_keep_alives_are_attempts() -> None:
    def ping(frames: list[bytes], after: int) -> list[bytes]:
        return [b'data: {"sequence_number":%d,"type":"keepalive"}\n\n' % (after + 1)]

    keeper = Keeper(PRIMES, [CUT], rest=ping)
    assert error_of(events_of(keeper, retry=AT_ONCE | {"max_attempts": 3})).reason == "truncated"
    assert (len(keeper.gets), keeper.stops) == (2, ["r1"])


IDLE: dict[str, Callable[[int], bytes]] = {
    "keep-alives": lambda after: frame("keepalive"),
    "numbered keep-alives": lambda after: frame("keepalive", sequence_number=after + 1),
    "a heartbeat": lambda after: frame("x.heartbeat"),
    "a numbered heartbeat": lambda after: frame("x.heartbeat", sequence_number=after + 1),
    "an unknown frame": lambda after: frame("response.novel", sequence_number=after + 1, x=1),
    "states": lambda after: response("in_progress").replace(b"{", b'{"sequence_number":%d,' % (after + 1), 1),
    "the end marker": lambda after: b"data: [DONE]\n\n",
    "what was read before": lambda after: PRIMES[after],
}
"""Connections that deliver nothing new of the answer, from the number of the last frame."""


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("name", IDLE)
def test_only_a_new_part_of_the_answer_renews_the_attempts(name: str, raw: bool) -> None:
    idle = IDLE[name]
    keeper = Keeper(PRIMES, [CUT], rest=lambda frames, after: [idle(after)] if len(keeper.gets) < 20 else [b"?"])
    with Loopback(keeper) as server:
        answer = stream_generate(engine(server, retry=AT_ONCE | {"max_attempts": 4}), "Hi", include_raw_chunks=raw)
        events = answer.to_list().run()
    assert error_of(events).reason == "truncated"
    assert text_of(events) == "2, 3, "
    assert (len(keeper.posts), len(keeper.gets), keeper.stops) == (1, 3, ["r1"])


def unnumbered(part: bytes, number: Any) -> bytes:
    old = b'"sequence_number":%d,' % (number_of(part) or 0)
    return part.replace(old, b"" if number is None else b'"sequence_number":%b,' % number)


@pytest.mark.parametrize(
    "number", [None, b'"5"', b"5.0", b"true", b"null", b"[5]", b'"x"', b"-5", b"1e400", b"5.5", b"9" * 400]
)
def test_a_part_of_the_rest_without_a_whole_number_is_never_read_twice(number: bytes | None) -> None:
    def rest(frames: list[bytes], after: int) -> list[bytes]:
        return [unnumbered(PRIMES[5], number)] if len(keeper.gets) < 20 else [b"?"]

    keeper = Keeper(PRIMES, [CUT], rest=rest)
    events = events_of(keeper, retry=AT_ONCE | {"max_attempts": 4})
    assert error_of(events).reason == "truncated"
    assert text_of(events) == "2, 3, "
    assert (len(keeper.posts), keeper.stops) == (1, ["r1"])
    assert len(keeper.gets) <= 3


@pytest.mark.parametrize("number", [b'"%d"', b"%d.0"])
def test_a_part_that_was_read_before_is_dropped_however_its_number_is_written(number: bytes) -> None:
    def rest(frames: list[bytes], after: int) -> list[bytes]:
        again = [unnumbered(part, number % index) for index, part in enumerate(frames[: after + 1])]
        return [*again, *frames_after(frames, after)]

    assert events_of(Keeper(PRIMES, [CUT], rest=rest)) == WHOLE


def test_after_a_part_without_a_number_the_answer_cannot_be_resumed() -> None:
    frames = [unnumbered(part, None) if index == 4 else part for index, part in enumerate(PRIMES)]
    keeper = Keeper(frames, [len(b"".join(frames[:5]))])
    assert error_of(events_of(keeper)).reason == "truncated"
    assert (keeper.gets, keeper.stops) == ([], ["r1"])


ANOTHER = response("completed", id="r2")
OUTPUT = {"output": [message("m1", "9")]}
FOREIGN: dict[str, Reply | Callable[[int], bytes]] = {
    "a frame with another id": lambda after: numbered(ANOTHER, after + 1),
    "a frame with an odd id": lambda after: numbered(response("completed", id=1), after + 1),
    "a frame without a number": lambda after: COMPLETED,
    "a frame with another text": lambda after: numbered(response("completed", **OUTPUT), after + 1),
    "a state with another id": lambda after: numbered(response("in_progress", id="r2"), after + 1) + ANOTHER,
    "a state without a number": lambda after: response("in_progress", id="r2"),
    "a document with another id": document("completed", "2, 3, 5.", id="r2"),
    "a document of another answer that is not complete": document("queued", id="r2"),
    "a document with another text": document("completed", "9"),
    "a document with less text": document("completed", "2, "),
    "a document without text": document("completed"),
    "an incomplete document without text": document("incomplete"),
    "a document with a call and another text": document(
        "completed", output=[message("m1", "9"), function("i", "a", "{}")]
    ),
}


def numbered(part: bytes, number: int) -> bytes:
    return part.replace(b"data: {", b'data: {"sequence_number":%d,' % number)


@pytest.mark.parametrize("name", FOREIGN)
def test_the_rest_of_another_answer_is_an_error_and_only_the_own_answer_is_stopped(name: str) -> None:
    reply = FOREIGN[name]
    keeper = Keeper(PRIMES, [CUT], rest=replies(reply if isinstance(reply, Reply) else lambda _, after: [reply(after)]))
    events = events_of(keeper)
    assert error_of(events).reason == "truncated"
    assert text_of(events) == "2, 3, "
    assert (len(keeper.posts), keeper.gets, keeper.stops) == (1, [4], ["r1"])


@pytest.mark.parametrize(
    "output",
    [
        [],
        [function("i0", "b", '{"x":1}')],
        [function("i0", "a", '{"x":1}') | {"name": "g"}],
        [function("i0", "a", '{"y":2}')],
        [function("i0", "a", '{"x"')],
    ],
)
def test_a_document_without_the_call_so_far_is_an_error(output: list[Any]) -> None:
    keeper = Keeper(CALLS, [len(b"".join(CALLS[:4]))], rest=replies(document("completed", output=output)))
    events = events_of(keeper)
    assert error_of(events).reason == "truncated"
    assert keeper.stops == ["r1"]


def test_text_that_waits_for_a_thought_is_compared_too() -> None:
    frames = number(
        CREATED
        + added(0, {"type": "reasoning", "id": "t", "summary": []})
        + begun(1, "m1")
        + delta("output_text", 1, "m1", "2")
    )
    keeper = Keeper([*frames, b": more\n\n"], [len(b"".join(frames))], rest=replies(document("completed", "9")))
    assert error_of(events_of(keeper)).reason == "truncated"


def test_a_later_id_is_neither_asked_for_nor_stopped() -> None:
    frames = [PRIMES[0], numbered(response("in_progress", id="r2"), 1), *number(text("2, ", "3."))[1:]]
    frames = [unnumbered(part, b"%d" % index) for index, part in enumerate(frames)]
    keeper = Keeper(frames, [len(b"".join(frames[:5]))], rest=replies(REFUSED["forgotten"][0]))
    with Loopback(keeper) as server:
        stream_generate(engine(server), "Hi").to_list().run()
    paths = {request.path.partition("?")[0] for request in server.requests[1:]}
    assert paths == {"/responses/r1", "/responses/r1/cancel"}
    odd = [frames[0].replace(b'"id":"r1"', b'"id":"../r1"'), *frames[1:]]
    with Loopback(Reply([b"".join(odd[:5]), Cut.RESET])) as server:
        stream_generate(engine(server), "Hi").to_list().run()
    assert [request.path for request in server.requests] == ["/responses"]


def test_a_key_that_does_not_arrive_does_not_delay_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reattach, "STOP_SECONDS", 0.1)
    keys: list[str] = []

    async def key() -> str:
        if keys:
            await asyncio.Event().wait()
        keys.append("k")
        return "k"

    async def main() -> None:
        adapter = OpenAIResponses(base_url=server.url, api_key=key)
        async for event in stream_generate(adapter, "Hi", model="m", options=BACKGROUND):
            if isinstance(event, TextDelta):
                break
        await until(lambda: "may still cost money: TimeoutError" in caplog.text)

    with Loopback(Keeper(PRIMES, [CUT], ends=[STALL])) as server:
        asyncio.run(main())


def test_a_local_answer_that_becomes_unreadable_is_stopped() -> None:
    decoder = CountingDecoder(OpenAIChat().decoder(rxllm.Request(), raw=False))
    answer = LocalAnswer(Local(), "a", decoder)
    decoder.feed(b"data: {oops\n\n")
    assert (answer.is_running, answer.can_resume) == (True, False)


@pytest.mark.parametrize("name", ["a wrong cursor", "a web page"])
def test_a_local_request_that_is_refused_is_not_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = Local()
    monkeypatch.setattr(adapter, "_server", SimpleNamespace(knows_tools=True))
    with Loopback(REFUSED[name][0]) as server:
        adapter.base_url = server.url
        with pytest.raises(AdapterError):
            rxllm.generate(adapter, "Hi", options=BACKGROUND).run()
    assert [request.method for request in server.requests] == ["POST"]
