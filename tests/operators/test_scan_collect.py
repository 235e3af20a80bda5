from __future__ import annotations

from functools import reduce

from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.events import RawChunk, TextDelta
from rxllm.runtime import Stream
from rxllm.testing.marbles import check
from rxllm.values import Thread, user

HELLO = [TextDelta("H"), TextDelta("i")]
THREAD = Thread((user("Hi"),))


def folded(count: int) -> StreamCollector:
    return reduce(StreamCollector.apply_event, HELLO[:count], StreamCollector(THREAD))


def test_each_event_gives_the_state_after_it() -> None:
    check(
        ops.scan_collect(THREAD),
        "-H-i-|",
        "^----!",
        "-1-2-|",
        **{"H": HELLO[0], "i": HELLO[1], "1": folded(1), "2": folded(2)},
    )


def test_a_raw_usage_with_unknown_names_is_the_streams_error() -> None:
    from reactivex import of

    errors: list[Exception] = []
    of(RawChunk("usage", {"nonsense": 1})).pipe(ops.scan_collect()).subscribe(on_error=errors.append)
    assert [type(error) for error in errors] == [TypeError]


def test_states_that_are_kept_stay_as_they_were() -> None:
    from reactivex import from_iterable

    states = list(Stream.of(from_iterable(HELLO).pipe(ops.scan_collect())))
    assert [state.current_text for state in states] == ["H", "Hi"]
