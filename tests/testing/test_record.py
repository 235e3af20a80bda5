"""Streams in files: what was recorded is what is played."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from reactivex import Observable, from_iterable, throw
from reactivex import operators as rx
from reactivex.testing import TestScheduler

from rxllm import Engine, Fake, ToolCall, chat, stream, stream_generate, to_iter, tool
from rxllm import operators as ops
from rxllm.events import Event, RawChunk, TextCompleted, TextDelta
from rxllm.testing import assert_operator, events, record, replay_file, strategies
from rxllm.testing.event_checks import fold, played
from rxllm.testing.marbles import check, cold
from rxllm.testing.marbles import record as noted
from rxllm.values import AdapterError, StreamError, ValidationError
from tests.wire.lawful import anonymous


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stream.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorded(path: Path, marbles: str, disposed: int | None = None, **values: Any) -> list[Any]:
    scheduler = TestScheduler()
    return noted(scheduler, lambda: cold(scheduler, marbles, values).pipe(record(path)), disposed)


def replayed(path: Path, speed: float = 1.0, disposed: int | None = None) -> list[Any]:
    return noted(TestScheduler(), lambda: replay_file(path, speed), disposed)


A, B = TextDelta("a"), TextDelta("b", "1")


def test_what_passes_is_written_with_its_time(path: Path) -> None:
    assert recorded(path, "--a--b--|", a=A, b=B) == [(2, "next", A), (5, "next", B), (8, "end", None)]
    assert lines(path) == [
        {"at": 2.0, "next": {"type": "text_delta", "delta": "a", "v": 1}},
        {"at": 5.0, "next": {"type": "text_delta", "delta": "b", "id": "1", "v": 1}},
        {"at": 8.0, "completed": True},
    ]


def test_it_is_played_with_its_timing(path: Path) -> None:
    notes = recorded(path, "--a--b--|", a=A, b=B)
    assert replayed(path) == notes
    assert replayed(path, 0.5) == [(4, "next", A), (10, "next", B), (16, "end", None)]
    assert replayed(path, 2) == [(1, "next", A), (2, "next", B), (4, "end", None)]


def test_it_is_played_at_once(path: Path) -> None:
    recorded(path, "--a--b--|", a=A, b=B)
    assert replayed(path, math.inf) == [(0, "next", A), (0, "next", B), (0, "end", None)]


def test_each_replay_is_its_own(path: Path) -> None:
    recorded(path, "-a-|", a=A)
    played_again = replay_file(path)
    assert [noted(TestScheduler(), lambda: played_again) for _ in range(2)] == [[(1, "next", A), (3, "end", None)]] * 2


@pytest.mark.parametrize(
    "error",
    [AdapterError("rate_limited", status=429, retry_after=1.5), StreamError("truncated", metadata={"a": (1, b"2")})],
)
def test_a_recorded_error_comes_back(path: Path, error: Exception) -> None:
    notes = recorded(path, "-a-X", a=A, X=error)
    assert replayed(path) == notes == [(1, "next", A), (3, "error", error)]


def test_an_error_that_is_not_rxllms_comes_back_by_its_name(path: Path) -> None:
    failure = ValueError("no such thing")
    assert recorded(path, "-X", X=failure) == [(1, "error", failure)]
    assert replayed(path) == [(1, "error", StreamError("adapter_error", "ValueError: no such thing"))]


def test_an_error_that_holds_no_data_comes_back_by_its_name(path: Path) -> None:
    failure = StreamError("truncated", "cut", metadata={"socket": object()})
    recorded(path, "-X", X=failure)
    assert replayed(path) == [(1, "error", StreamError("adapter_error", "StreamError: cut"))]


def test_a_dispose_completes_the_file_and_is_an_error_when_played(path: Path) -> None:
    assert recorded(path, "-a-b-|", disposed=2, a=A, b=B) == [(1, "next", A)]
    assert lines(path)[1:] == [{"at": 2.0, "disposed": True}]
    ((_, _, item), (at, kind, error)) = replayed(path)
    assert (item, at, kind) == (A, 2, "error")
    assert isinstance(error, StreamError)
    assert error.reason == "cancelled"


def test_who_leaves_as_it_left_sees_the_same(path: Path) -> None:
    scheduler = TestScheduler()
    first = noted(scheduler, lambda: cold(scheduler, "-a-b-|", {"a": A, "b": B}).pipe(record(path), rx.take(1)))
    assert noted(TestScheduler(), lambda: replay_file(path).pipe(rx.take(1))) == first


def test_a_subscriber_that_breaks_has_left(path: Path) -> None:
    failure = AdapterError("unknown", "the subscriber's own")

    def refuse(event: Event) -> None:
        raise failure

    errors: list[Exception] = []
    from_iterable([A, B]).pipe(record(path)).subscribe(refuse, errors.append)
    assert errors == [failure]
    assert [set(line) for line in lines(path)] == [{"at", "next"}, {"at", "disposed"}]


@pytest.mark.parametrize("end", ["|", "X"])
def test_the_file_is_complete_before_the_end_is_passed_on(path: Path, end: str) -> None:
    seen: list[int] = []
    source: Observable[Event] = (
        from_iterable([A]) if end == "|" else from_iterable([A]).pipe(rx.concat(throw(StreamError("truncated"))))
    )
    piped = source.pipe(record(path))
    piped.subscribe(
        on_error=lambda _: seen.append(len(lines(path))), on_completed=lambda: seen.append(len(lines(path)))
    )
    assert seen == [2]


def test_what_came_is_in_the_file_while_it_comes(path: Path) -> None:
    seen: list[int] = []
    from_iterable([A, B]).pipe(record(path)).subscribe(lambda event: seen.append(len(lines(path))))
    assert seen == [1, 2]


def test_every_subscription_has_a_file_of_its_own(path: Path) -> None:
    operator = record(path)
    for delta in "abc":
        played(from_iterable([TextDelta(delta)]).pipe(operator))
    names = ["stream.jsonl", "stream.2.jsonl", "stream.3.jsonl"]
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(names)
    assert [played(replay_file(path.parent / name)) for name in names] == [[TextDelta(delta)] for delta in "abc"]


def test_an_engine_records_each_of_its_calls(path: Path) -> None:
    add = tool(name="add", handler=lambda arguments: arguments["x"] + 1)
    live = Engine(Fake(["Let me see", ToolCall("c1", "add", {"x": 1})], "It is 2"), tools=(add,))
    result = chat(live.with_operators(record(path)), "What is 1 + 1?").run()
    paths = [path, path.with_suffix(".2.jsonl")]
    scripts = [played(replay_file(path, math.inf)) for path in paths]
    assert chat(Engine(Fake(scripts=scripts), tools=(add,)), "What is 1 + 1?").run() == result


def test_a_whole_chat_survives(path: Path) -> None:
    add = tool(name="add", handler=lambda arguments: arguments["x"] + 1)
    script = ["Let me see", ("thinking", "hm"), ToolCall("c1", "add", {"x": 1})]
    emitted = played(stream(Fake(script, "It is 2"), "What is 1 + 1?", tools=[add]).pipe(record(path)))
    assert played(replay_file(path)) == emitted
    assert type(emitted[-1]).__name__ == "ChatCompleted"


@given(strategies.event_lists | strategies.lawful_chats)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_events_survive(path: Path, emitted: list[Event]) -> None:
    passed = played(from_iterable(emitted).pipe(record(path)))
    assert passed == emitted
    assert played(replay_file(path, math.inf)) == emitted


def test_an_event_without_json_ends_the_stream(path: Path) -> None:
    odd = RawChunk("odd", object())
    ((_, kind, error),) = recorded(path, "-a-b-|", a=odd, b=B)
    assert kind == "error"
    assert isinstance(error, ValidationError)
    assert error.reason == "not_serializable"
    assert replayed(path) == [(1, "error", error)]


def test_a_file_that_cannot_be_written_is_the_streams_error(path: Path) -> None:
    ((_, kind, error),) = recorded(path / "under" / "a file", "-a-|", a=A)
    assert kind == "error"
    assert isinstance(error, FileNotFoundError)


GOOD = '{"at": 1.0, "next": {"type": "text_delta", "delta": "a"}}'
END = '{"at": 2.0, "completed": true}'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        (f"{GOOD}\nno json\n{END}", 2),
        (f"{GOOD}\n{END[:-5]}", 2),
        (GOOD, 1),
        (f"{END}\n{GOOD}\n{END}", 1),
        (f'{GOOD}\n{{"at": 1.0}}\n{END}', 2),
        ('{"at": "soon", "completed": true}', 1),
        ('{"completed": true}', 1),
        (f'{{"at": 1.0, "next": {{"type": "no_such_event"}}}}\n{END}', 1),
        (f'{{"at": 1.0, "next": null}}\n{END}', 1),
        (f'{{"at": 1.0, "next": {{"type": "text_delta"}}}}\n{END}', 1),
        ('{"at": 1.0, "error": {"type": "text_delta", "delta": "a"}}', 1),
        ('{"at": 1.0, "completed": true, "disposed": true}', 1),
        ('{"at": 1.0, "completed": true, "more": 1}', 1),
        (f"{GOOD}\n\n{END}", 2),
        (f'{{"at": 1.0, "next": {"[" * 3000}{"]" * 3000}}}\n{END}', 1),
        (f'{GOOD}\n{{"at": 1.0, "error": {"[" * 100_000}{"]" * 100_000}}}', 2),
        (f"{'[' * 3000}{']' * 3000}", 1),
    ],
)
def test_a_bad_file_is_an_error_that_names_its_line(path: Path, text: str, line: int) -> None:
    path.write_text(text)
    ((_, kind, error),) = replayed(path)
    assert kind == "error"
    assert isinstance(error, ValidationError)
    assert error.reason == "invalid_request"
    assert error.message.startswith(f"{path}, line {line}: ")
    assert error.metadata == {"path": str(path), "line": line}


def test_bytes_that_are_no_text_are_an_error_too(path: Path) -> None:
    path.write_bytes(b'{"at": 1.0, "next": {"type": "text_delta", "delta": "\xff"}}\n' + END.encode())
    ((_, _, error),) = replayed(path)
    assert error.metadata["line"] == 1


def test_a_file_that_is_not_there_is_an_error_at_subscription(path: Path) -> None:
    source = replay_file(path)
    ((_, kind, error),) = noted(TestScheduler(), lambda: source)
    assert (kind, type(error)) == ("error", FileNotFoundError)


@pytest.mark.parametrize("speed", [0, -1, math.nan, "fast", None])
def test_a_speed_that_is_none_is_refused(path: Path, speed: Any) -> None:
    with pytest.raises(ValueError, match="speed must be a positive number"):
        replay_file(path, speed)


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a string or a Path, not "):
        from_iterable(events("Hi")).pipe(record)
    with pytest.raises(TypeError, match="must be a string or a Path, not 5"):
        replay_file(5)  # type: ignore[arg-type]


def test_take_stops_it_and_leaves_nothing(path: Path) -> None:
    recorded(path, "-a-b-|", a=A, b=B)
    assert played(replay_file(path).pipe(rx.take(1))) == [A]
    assert played(replay_file(path, math.inf).pipe(rx.take(1))) == [A]


def test_it_can_be_run_awaited_and_iterated(path: Path) -> None:
    emitted = events("Hel", "lo")
    played(from_iterable(emitted).pipe(record(path)))
    assert list(replay_file(path)) == emitted
    assert replay_file(path).pipe(ops.to_text()).run() == "Hello"

    async def main() -> Any:
        return await replay_file(path).pipe(ops.to_text())

    assert asyncio.run(main()) == "Hello"


def test_it_waits_for_a_slow_consumer(path: Path) -> None:
    played(from_iterable([TextDelta(str(number)) for number in range(200)]).pipe(record(path)))
    passed: list[Event] = []
    with to_iter(replay_file(path, math.inf).pipe(ops.tap(passed.append)), maxsize=4) as items:
        next(items)
        assert len(passed) < 20
        assert len(list(items)) == 199


def test_record_keeps_every_rule_of_operators(path: Path) -> None:
    assert_operator(lambda: record(path))


def test_a_live_stream_is_recorded_in_seconds(path: Path) -> None:
    live = stream_generate(Fake(["a", ("delay", 0.05), "b"]), "Hi").pipe(record(path)).to_list().run()
    times = {line["next"].get("delta"): line["at"] for line in lines(path) if "next" in line}
    assert times["b"] - times["a"] >= 0.045
    assert live[-2] == TextCompleted("ab", "block_0")
    assert replay_file(path, math.inf).to_list().run() == live


def test_recordings_of_earlier_versions_whose_blocks_have_no_ids_play_unchanged(path: Path) -> None:
    old = [anonymous(event) for event in events("Hel", "lo", thinking="hm")]
    assert played(from_iterable(old).pipe(record(path))) == old
    assert "block_" not in path.read_text()
    assert list(replay_file(path, math.inf)) == old
    assert replay_file(path, math.inf).pipe(ops.to_response()).run() == fold(events("Hel", "lo", thinking="hm"))


def test_its_marbles(path: Path) -> None:
    check(
        record(path),
        "-a-b-|",
        "^----!",
        "-a-b-|",
        a=A,
        b=B,
    )
