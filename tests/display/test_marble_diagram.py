"""Marble diagrams: what they say as text and as SVG, how they run, and that they are bounded and safe."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
import reactivex
from hypothesis import given
from hypothesis import strategies as st
from reactivex import from_iterable, of

import rxllm
from rxllm import Fake, StreamError, TextDelta, ThinkingDelta, ValidationError, stream_generate
from rxllm import operators as ops
from rxllm.display import MarbleDiagram, marble_diagram
from rxllm.display._marble_lanes import _KINDS, MAX_MARKS, MAX_ROWS
from rxllm.events import EVENT_CLASSES
from rxllm.testing import assert_operator, record, replay_file, strategies
from rxllm.testing.marbles import check
from tests.pictures import answer, plays
from tests.programs import python

VALUES: dict[str, Any] = {"d": TextDelta("d"), "t": ThinkingDelta("t"), "X": StreamError("truncated")}


# As text


def test_a_pipe_has_a_lane_for_each_stage_named_as_it_is_typed() -> None:
    ticks = plays("-a-b-c-|")
    assert str(marble_diagram(ticks, ops.tap(str), ops.lift(Joined), virtual=True)) == "\n".join(
        [
            "ticks             -a-b-c-|",
            "                  ^------!",
            "ops.tap(str)      -a-b-c-|",
            "                  ^------!",
            "ops.lift(Joined)  -------(d|)",
            "                  0    5 s",
            "d='abc'",
        ]
    )


class Joined:
    def __init__(self) -> None:
        self.items: list[str] = []

    def feed(self, item: str) -> list[str]:
        self.items.append(item)
        return []

    def close(self) -> list[str]:
        return ["".join(self.items)]


def test_the_three_lines_are_those_of_check() -> None:
    source = plays("-d-t-d-X", **VALUES)
    diagram = marble_diagram(source, ops.only(TextDelta), virtual=True)
    marbles, used, emitted, *legend = [line[21:] or line for line in str(diagram).splitlines()]
    assert (marbles, used, emitted) == ("-d-t-d-X", "^------!", "-d---d-X")
    values = {line[0]: eval(line[2:], vars(rxllm)) for line in str(diagram).splitlines() if line[1] == "="}
    assert legend
    check(ops.only(TextDelta), marbles, used, emitted, **values)


@st.composite
def marbles(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.sampled_from(["-", "a", "b", "c", "(ab)", "(aac)"]), max_size=20))
    return "-" + "".join(parts) + draw(st.sampled_from(["|", "X", "(a|)", "-|"]))


@given(marbles())
def test_what_is_drawn_can_be_played_again(source: str) -> None:
    diagram = marble_diagram(plays(source, **VALUES), ops.tap(len), labels=["s", "t"], virtual=True)
    drawn, used, emitted, *_ = (line[3:] for line in str(diagram).splitlines())
    if is_timed_by_characters(str(diagram)):
        assert drawn == emitted == source
        check(ops.tap(len), drawn, used, emitted, X=VALUES["X"])
    else:  # several groups may need finer ticks than the source has
        assert re.sub("-", "", drawn) == re.sub("-", "", emitted)
    assert diagram.svg()


@pytest.mark.parametrize(
    ("marbles", "axis"),
    [("-|", " 1 s"), ("--|", "0 2 s"), ("---|", "0 2 s"), ("-a-b-c-d-|", "0    5 s"), ("(ab|)", "")],
)
def test_below_the_marbles_is_an_axis_with_round_times(marbles: str, axis: str) -> None:
    text = str(marble_diagram(plays(marbles), virtual=True, labels=["s"])).splitlines()
    assert text[1:2] == ([f"   {axis}"] if axis else [])


def test_times_between_seconds_have_an_axis_in_seconds() -> None:
    source = reactivex.interval(0.2).pipe(reactivex.operators.take(10))
    text = str(marble_diagram(source, virtual=True, labels=["s"]))
    assert text.splitlines()[1] == "   0    1 s  2 s"


def is_timed_by_characters(text: str) -> bool:
    """Whether each time on the axis stands at the column of as many seconds."""
    axis = next((line[3:] for line in text.splitlines() if re.fullmatch(r" +0?( *[\d.]+ m?s)+", line)), "")
    return all(label.start() == float(label[1]) for label in re.finditer(r"([\d.]+) m?s", axis))


def test_streams_in_a_list_are_the_arguments_of_the_first_operator() -> None:
    slow, fast = answer(3, "slow"), answer(1, "fast", 1)
    text = str(marble_diagram([slow, fast], rxllm.race, ops.text(), virtual=True))
    assert [line.split()[0] for line in text.splitlines()[::2]][:4] == ["slow", "fast", "rxllm.race", "ops.text()"]
    assert "^!" not in text.splitlines()[1]
    assert text.splitlines()[1].strip() == "^---!"  # disposed when the other has content
    assert text.splitlines()[6].split()[-1] == "----f---|"


def test_streams_in_a_dict_are_one_argument_and_their_names_the_labels() -> None:
    streams = {"one": plays("-a-|"), "two": plays("--b-|")}
    text = str(marble_diagram(streams, rxllm.merge_labelled, virtual=True))
    assert [line.split()[0] for line in text.splitlines()[:5:2]] == ["one", "two", "rxllm.merge_labelled"]
    assert "Labelled(label='one', item='a')" in text


def test_without_operators_streams_run_side_by_side_and_an_error_ends_only_its_own() -> None:
    text = str(marble_diagram([plays("-X", **VALUES), plays("---b|")], virtual=True, labels=["x", "b"]))
    assert text.splitlines() == [
        "x  -X",
        "   ^!",
        "b  ---b|",
        "   0   4 s",
        "X=StreamError('truncated', 'stream error: truncated')",
    ]


def test_concurrent_subscriptions_have_rows_of_their_own() -> None:
    source = plays("----a-|")
    text = str(
        marble_diagram(
            source,
            lambda s: reactivex.merge(s, reactivex.timer(1.0).pipe(reactivex.operators.flat_map(s))),
            virtual=True,
            labels=["s", "m"],
        )
    )
    assert text.splitlines()[:4] == ["s    ----a-|", "     ^-----!", "2nd   ----a-|", "     " + " ^-----!"]


def test_a_retry_starts_a_row_at_its_time() -> None:
    source = plays("-aX", **VALUES)
    text = str(marble_diagram(source, reactivex.operators.retry(2), virtual=True, labels=["s", "r"]))
    assert text.splitlines()[:5] == ["s    -aX", "     ^-!", "2nd    -aX", "       ^-!", "r    -a-aX"]


def test_until_disposes_what_still_runs() -> None:
    diagram = marble_diagram(plays("-a-a-a-a-a"), ops.tap(str), until=4.0, virtual=True, labels=["s", "t"])
    assert str(diagram).splitlines()[:4] == ["s  -a-a", "   ^---!", "t  -a-a", "   ^---!"]


def test_what_never_ends_is_drawn_as_running() -> None:
    diagram = marble_diagram(plays("-a-a"), virtual=True, labels=["s"])
    assert str(diagram).splitlines()[0] == "s  -a-a"
    assert str(MarbleDiagram()) == "MarbleDiagram()"
    ElementTree.fromstring(MarbleDiagram().svg())


# How it runs


def test_errors_are_drawn_and_not_raised() -> None:
    diagram = marble_diagram(stream_generate(Fake(["Hel", StreamError("truncated")]), "Hi"), ops.text())
    assert "X=StreamError('truncated'" in str(diagram)
    assert ">truncated<" in diagram.svg()


def test_in_real_time_until_disposes_the_stream() -> None:
    slow = stream_generate(Fake(["a", ("delay", 3600.0), "b"]), "Hi", retry=False)
    diagram = marble_diagram(slow, ops.text(), until=1.0)
    assert str(diagram).splitlines()[3].strip().endswith("!")


def test_virtual_time_takes_none() -> None:
    text = str(marble_diagram(answer(1000, "Hi", 1000), ops.text(), virtual=True))
    assert re.search(r"^ +0 +5 min +10 min", text, re.MULTILINE)


def test_a_recording_is_the_picture_of_what_was_recorded(tmp_path: Any) -> None:
    path = tmp_path / "hi.jsonl"
    live = marble_diagram(answer(300, "Hel", 200, "lo wo", 400, "rld", 100), record(path), ops.words(), virtual=True)
    again = marble_diagram(replay_file(path), ops.words(), virtual=True)
    assert str(live).splitlines()[4].split() == str(again).splitlines()[2].split()
    assert str(live).splitlines()[0].split() == str(again).splitlines()[0].split()


def test_a_lane_watches_any_pipe_in_async_code() -> None:
    diagram = MarbleDiagram()

    async def main() -> str:
        events = stream_generate(Fake(["Hel", "lo"]), "Hi")
        return await events.pipe(diagram.lane("events"), ops.to_text(), diagram.lane("text"))

    assert asyncio.run(main()) == "Hello"
    assert [line.split()[0] for line in str(diagram).splitlines()[:3:2]] == ["events", "text"]


def test_a_lane_changes_nothing() -> None:
    assert_operator(lambda: MarbleDiagram().lane("here"))


def test_a_lane_passes_back_pressure_on() -> None:
    model = Fake([f"{number} " for number in range(1000)])
    diagram = MarbleDiagram()
    for _ in stream_generate(model, "Count").pipe(diagram.lane("events")):
        break
    assert sum(len(span.marks) for span in diagram._lanes[0].spans) < 200


def test_on_a_running_loop_it_warns_as_run_does() -> None:
    async def main() -> MarbleDiagram:
        return marble_diagram(of(1))

    with pytest.warns(RuntimeWarning, match="await"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        (("hello.jsonl",), {}, "replay_file"),
        (([],), {}, "streams must be an Observable"),
        (([of(1), 2],), {}, "streams must be an Observable"),
        ((of(1), 3), {}, "operators.0."),
        ((of(1), ops.text), {}, "parentheses"),
        ((of(1), lambda source: 3), {}, "operators.0. returns"),
        ((of(1),), {"until": 0}, "until"),
        ((of(1),), {"labels": ["a", "b"]}, "labels"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, options: Any, match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        marble_diagram(*arguments, **options)


CELLS = """
import asyncio
from rxllm import TextDelta, stream_generate
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.displaypub import CapturingDisplayPublisher
shell = InteractiveShell.instance()
shell.kernel = True
shell.display_pub = CapturingDisplayPublisher(parent=shell, shell=shell)
shell.run_cell("from rxllm import Fake, stream_generate, operators as ops; from rxllm.display import marble_diagram")
async def slow(request, call):
    yield TextDelta("Hel")
    while len(shell.display_pub.outputs) < 3:
        await asyncio.sleep(0.01)
    yield TextDelta("lo")
shell.push({"answer": stream_generate(slow, "Hi")})
for code in ("marble_diagram(answer, ops.text())", "kept = marble_diagram(answer, ops.text())", "kept"):
    shell.display_pub.outputs.clear()
    result = shell.run_cell(code, store_history=True)
    assert result.success
    outputs = shell.display_pub.outputs
    new = [output for output in outputs if not output.get("update")]
    print(len(new), len(outputs) > 2, sorted(outputs[-1]["data"]), "answer" in outputs[-1]["data"]["image/svg+xml"])
"""


@pytest.mark.judges
def test_a_cell_shows_it_once_and_redraws_it_in_place() -> None:
    """In IPython itself: as the last expression of a cell, as a value, and in a later cell."""
    pytest.importorskip("IPython")
    ran = python("-c", CELLS)
    both = "['image/svg+xml', 'text/plain']"
    shown = [line.rpartition("]: ")[2] for line in ran.stdout.splitlines() if "svg" in line]
    assert shown == [f"1 True {both} True", f"1 True {both} True", f"1 False {both} True"], ran.stderr


# Every event, every text, any length


def test_the_kinds_are_of_events() -> None:
    assert _KINDS.keys() <= {cls.__name__ for cls in EVENT_CLASSES}


@pytest.mark.judges
@given(st.lists(strategies.events, max_size=10))
def test_every_event_is_drawn(events: list[Any]) -> None:
    diagram = marble_diagram(from_iterable(events), virtual=True)
    assert str(diagram)
    ElementTree.fromstring(diagram.svg())


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]>",
    "&amp;",
    "\u202egnp.exe",
    "\x00\x1b[31m",
]


@given(st.lists(st.text() | st.sampled_from(HOSTILE), max_size=8), st.text(max_size=40))
def test_no_text_becomes_markup(texts: list[str], label: str) -> None:
    source = from_iterable([TextDelta(text) for text in texts])
    svg = marble_diagram(source, labels=[label], virtual=True).svg()
    root = ElementTree.fromstring(svg)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "style", "rect", "path", "text"}
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", svg)


def test_it_needs_nothing_from_elsewhere() -> None:
    svg = marble_diagram(answer(1, "Hi"), ops.text(), virtual=True).svg()
    assert svg.count("http") == 1  # the namespace
    assert not re.search(r"href|url\(|@import|<script|<image", svg)
    assert "prefers-color-scheme:dark" in svg


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_an_item_without_a_repr_is_drawn_by_its_class() -> None:
    assert ">Odd<" in marble_diagram(of(Odd()), virtual=True).svg()


def burst(count: int) -> Iterator[Any]:
    kinds = (TextDelta, ThinkingDelta)
    for number in range(count):
        yield kinds[number // 3 % 2](f"piece {number} " * 20)


@pytest.mark.judges
def test_ten_thousand_events_are_a_small_picture() -> None:
    diagram = marble_diagram(from_iterable(burst(10_000)), ops.tap(str), virtual=True)
    spread = marble_diagram(reactivex.interval(0.01), reactivex.operators.take(10_000), virtual=True)
    for drawn in (diagram, spread):
        assert len(drawn.svg()) < 30_000
        assert max(map(len, str(drawn).splitlines())) < 250
        assert len(str(drawn).splitlines()) < 60
        assert all(len(span.marks) <= MAX_MARKS for lane in drawn._lanes for span in lane.spans)
    assert ">10000 x<" in spread.svg()


def test_a_hundred_streams_are_a_picture_of_bounded_height() -> None:
    svg = marble_diagram([of(number) for number in range(100)], virtual=True).svg()
    assert "and 70 more" in svg
    assert len(svg) < 30_000


def test_many_subscriptions_are_bounded() -> None:
    diagram = marble_diagram(of(1), reactivex.operators.repeat(1000), virtual=True)
    assert [len(lane.spans) for lane in diagram._lanes] == [MAX_ROWS, 1]
    assert f"and {1000 - MAX_ROWS} more" in str(diagram)
    assert f"and {1000 - MAX_ROWS} more" in diagram.svg()


@pytest.mark.judges
def test_it_is_drawn_while_another_thread_goes_on() -> None:
    diagram = MarbleDiagram()
    source = from_iterable(burst(20_000)).pipe(diagram.lane("fast"), ops.map_text(str.upper), diagram.lane("upper"))
    running = threading.Thread(target=source.run)
    running.start()
    while running.is_alive():
        assert str(diagram)
        ElementTree.fromstring(diagram.svg())
    running.join()


def test_a_label_that_is_long_is_clipped() -> None:
    svg = marble_diagram(of(TextDelta("word " * 1000)), labels=["lane " * 1000], virtual=True).svg()
    assert len(svg) < 12_000


def test_the_same_run_is_the_same_bytes() -> None:
    first, second = (marble_diagram(answer(1, "Hi", 2), ops.text(), virtual=True).svg() for _ in range(2))
    assert first == second
