"""`timeline`: its rows and figures are those of the events, and a run is the same picture live and from its log."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import empty, from_iterable, timer
from reactivex.testing import TestScheduler

import rxllm
from rxllm import AdapterError, Engine, Fake, ToolCall, Usage, ValidationError, serializer, telemetry, tool
from rxllm import operators as ops
from rxllm.display import Timeline, timeline
from rxllm.durable import open_runs
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    MessageCompleted,
    TextDelta,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from rxllm.testing import Cassette, record, simulate, timed_file
from rxllm.values import Labelled, Timed
from tests.examples import examples
from tests.laws import scripts
from tests.laws.support import engine

SVG = "{http://www.w3.org/2000/svg}"


@tool
def search(query: str) -> Any:
    """Search the web."""
    return timer(1.4).map(lambda _: "found")


@tool
def weather(city: str) -> Any:
    """The weather."""

    def fail(_: int) -> str:
        raise ValueError(f"no station in {city}")

    return timer(0.9).map(fail)


POET = Engine(Fake([("delay", 0.5), "Blue ", ("delay", 0.25), "lines.", Usage(40, 16)])).as_tool(
    name="poet", description="Write a line."
)
CALLS = [ToolCall("a", "search", {"query": "poems"}), ToolCall("b", "weather", {"city": "Oslo"})]


def sea(*tools: Any, observers: Any = ()) -> rxllm.Stream[Any]:
    """A chat of two steps, whose first one calls tools."""
    calls = [*CALLS, ToolCall("c", "poet", {"prompt": "The sea"})] if POET in tools else CALLS
    first = [
        ("delay", 0.5),
        ("thinking", "hm"),
        ("delay", 0.25),
        "Let ",
        ("delay", 0.25),
        "us.",
        *calls,
        Usage(400, 96),
    ]
    second = [("delay", 1.0), "It ", ("delay", 0.5), "is ", ("delay", 0.5), "blue.", Usage(900, 61, total_cost=0.003)]
    model = Engine(Fake(first, second), observers=[*observers])
    return rxllm.stream(model, "A line on the sea, please.", tools=[*tools])


def in_virtual_time(stream: rxllm.Stream[Any]) -> list[Any]:
    """Subscribe on a virtual clock, and return the items. An error is the last one."""
    clock, items = TestScheduler(), []
    stream.subscribe(items.append, items.append, scheduler=clock)
    clock.start()
    return items


def timed(stream: rxllm.Stream[Any]) -> list[Timed[Any]]:
    return in_virtual_time(stream.pipe(ops.errors_as_events(), ops.timed()))


def bars(row: Any) -> list[tuple[str, float, float]]:
    return [(bar.kind, pytest.approx(bar.start), pytest.approx(bar.end)) for bar in row.bars]


def shape(rows: Any) -> list[Any]:
    """Rows as their names, each followed by a list of the rows below it."""
    return [part for row in rows for part in ([row.name, shape(row.rows)] if row.rows else [row.name])]


def failing_engine(*tries: Any, **options: Any) -> Engine:
    return Engine(Fake(*tries), retry={"base_delay": 1, "jitter": 0}, **options)


# The rows


def test_a_chat_has_a_row_for_each_step_and_tool() -> None:
    run = timeline(timed(sea(search, weather)))
    assert shape(run.rows) == ["step 1", ["search", "weather"], "step 2"]
    first, second = run.rows
    assert bars(first) == [("waiting", 0, 0.5), ("thinking", 0.5, 0.75), ("text", 0.75, 1), ("call", 1, 1)]
    assert first.bars[2].ticks == pytest.approx([0.75, 1.0])
    assert [bars(row) for row in first.rows] == [[("tool", 1, 2.4)], [("failed", 1, 1.9)]]
    assert [row.about for row in first.rows] == ["poems", "Oslo"]
    assert (first.rows[0].error, first.rows[1].error) == ("", "ValueError: no station in Oslo")
    assert bars(second) == [("waiting", 2.4, 3.4), ("text", 3.4, 4.4)]
    assert (first.ttft, second.ttft) == pytest.approx((0.5, 1.0))
    assert second.tokens_per_second == pytest.approx(61)
    assert run.title == "A line on the sea, please."
    assert run.summary == "2 steps · 2 tool calls (1 failed) · 4.4 s · 1,457 tokens · $0.003"


def test_an_agent_is_drawn_below_its_call() -> None:
    run = simulate(lambda world: _draw(sea(search, weather, POET)), faults=()).value
    assert shape(run.rows) == ["step 1", ["search", "weather", "poet", ["step 1"]], "step 2"]
    poet = run.rows[0].rows[2]
    waits, writes = poet.rows[0].bars
    assert waits.start == poet.bars[0].start
    assert (waits.end - waits.start, writes.end - writes.start) == pytest.approx((0.5, 0.25), abs=0.01)
    assert run.usage == Usage(1340, 173, total_cost=0.003)


async def _draw(stream: rxllm.Stream[Any]) -> Timeline:
    return timeline(await stream.pipe(ops.timed()).to_list())


def test_a_single_response_has_one_row_and_its_ticks() -> None:
    run = timeline(timed(rxllm.stream_generate(Fake(["a", ("delay", 1), "b", Usage(3, 2)]), "Hi")))
    assert shape(run.rows) == ["response"]
    assert run.rows[0].bars[-1].ticks == pytest.approx([0, 1])
    assert run.summary == "1.0 s · 5 tokens"


def test_bars_without_deltas_have_the_same_lengths() -> None:
    stream = rxllm.stream_generate(Fake([("thinking", "hm"), ("delay", 1), "a", ("delay", 1), "b"]), "Hi")
    run = timeline(timed(stream.pipe(ops.filter_deltas(text=False, thinking=False))))
    assert [bar.kind for bar in run.rows[0].bars] == ["waiting", "thinking", "text"]
    assert run.seconds == pytest.approx(2)


def test_an_approval_is_a_wait() -> None:
    wipe = tool(name="wipe", description="Wipe it.", schema={}, handler=lambda arguments: "gone", approval=True)
    model = Fake([ToolCall("c0", "wipe")], "Gone.")
    stream = rxllm.stream(model, "Wipe it", tools=[wipe], approve=lambda call: timer(5.0).map(lambda _: True))
    assert bars(timeline(timed(stream)).rows[0].rows[0]) == [("approval", 0, 5), ("tool", 5, 5)]
    halted = timeline(timed(rxllm.stream(Fake([ToolCall("c0", "wipe")]), "Wipe it", tools=[wipe])))
    assert halted.rows[0].rows[0].note == "not answered"


def test_retries_are_cut_bars_in_the_row_of_the_response() -> None:
    busy = [("delay", 0.5), ("error", "rate_limited")]
    run = timeline(timed(rxllm.stream_generate(failing_engine(busy, busy, [("delay", 1), "Hi"]), "Hi")))
    kinds = ("lost", "waiting", "lost", "waiting", "text")
    times = [0, 0.5, 1.5, 2.0, 5.0, 5.0]
    assert bars(run.rows[0]) == [*zip(kinds, times, times[1:], strict=False)]
    assert run.rows[0].ttft == pytest.approx(5)
    assert "rate_limited" in run.rows[0].bars[0].title


def test_a_restart_is_a_cut_row() -> None:
    torn = [("delay", 0.5), "Hel", ("delay", 0.5), "lo", ("error", "timeout")]
    restart = ops.restart({"base_delay": 1, "jitter": 0})
    run = timeline(
        timed(rxllm.stream_generate(failing_engine(torn, ["Hello", Usage(1, 1)], operators=[restart]), "Hi"))
    )
    assert [(row.name, row.error) for row in run.rows] == [("response", "timeout"), ("response", "")]
    assert bars(run.rows[0]) == [("lost", 0, 0.5), ("lost", 0.5, 1)]
    assert bars(run.rows[1]) == [("waiting", 1, 2), ("text", 2, 2)]
    assert run.usage == Usage(1, 1)


def test_the_losers_of_a_race_are_cut_where_they_were_disposed() -> None:
    lanes = [[("delay", 3), "slow"], [("delay", 2), "quick", ("delay", 1), "er"], [("delay", 1), ("error", "timeout")]]
    race = rxllm.race(*(rxllm.stream_generate(Fake(lane), "Hi", retry=False) for lane in lanes))
    (row,) = timeline(timed(race)).rows
    assert (row.about, bars(row)) == ("stream 1", [("waiting", 0, 2), ("text", 2, 3)])
    assert [(lost.name, bars(lost)) for lost in row.rows] == [
        ("stream 0", [("lost", 0, 2)]),
        ("stream 2", [("lost", 0, 1)]),
    ]
    assert [bool(lost.error) for lost in row.rows] == [False, True]


def test_a_hedge_begins_where_its_second_call_did() -> None:
    hedged = rxllm.hedge(rxllm.stream_generate(Fake([("delay", 9), "Late"], [("delay", 1), "In time"]), "Hi"), after=2)
    (row,) = timeline(timed(hedged)).rows
    assert (bars(row), bars(row.rows[0])) == ([("waiting", 2, 3), ("text", 3, 3)], [("lost", 0, 3)])
    assert row.ttft == pytest.approx(3)


def test_a_fallback_has_a_row_for_each_engine() -> None:
    down, backup = [("delay", 1), ("error", "invalid_request")], Engine(Fake([("delay", 1), "Hi"]), model="backup")
    fallen = failing_engine(down, operators=[ops.fallback(backup)], model="first")
    (row,) = timeline(timed(rxllm.stream_generate(fallen, "Hi"))).rows
    assert (row.about, bars(row)) == ("Fake:backup", [("waiting", 1, 2), ("text", 2, 2)])
    assert (row.rows[0].name, bars(row.rows[0])) == ("Fake:first", [("lost", 0, 1)])


def test_labelled_streams_have_rows_in_the_order_of_the_mapping(capsys: pytest.CaptureFixture[str]) -> None:
    streams = {
        "slow": rxllm.stream_generate(Fake([("delay", 0.05), "a"]), "Hi"),
        "quick": rxllm.stream(Fake("b"), "Hi"),
    }
    run = timeline(streams, title="Two")
    assert shape(run.rows) == ["slow", ["response"], "quick", ["step 1"]]
    assert set(run.result) == {"slow", "quick"}
    assert capsys.readouterr().out == f"{run}\n"


def test_a_failed_stream_is_drawn_and_then_raised(capsys: pytest.CaptureFixture[str]) -> None:
    failing = rxllm.stream_generate(Fake(AdapterError("invalid_request", "no such model")), "Hi")
    with pytest.raises(AdapterError):
        timeline(failing)
    run = rxllm.display.last
    assert (run.rows[0].error, run.error) == ("no such model", "no such model")
    assert "no such model" in capsys.readouterr().out


# The figures


def test_the_figures_are_those_of_telemetry() -> None:
    seen: list[Any] = []
    items = timed(sea(search, weather, observers=[seen.append]))
    run = timeline(items)
    assert [row.ttft for row in run.rows] == [x.seconds for x in seen if isinstance(x, telemetry.FirstToken)]
    assert [row.usage for row in run.rows] == [x.usage for x in seen if isinstance(x, telemetry.CallFinished)]
    taken = {x.tool: x.seconds for x in seen if isinstance(x, telemetry.ToolFinished)}
    assert {row.name: row.end - row.start for row in run.rows[0].rows} == pytest.approx(taken)
    (chat,) = [x for x in seen if isinstance(x, telemetry.ChatFinished)]
    assert (run.seconds, run.usage) == (chat.seconds, chat.usage)


@settings(deadline=None, max_examples=examples(100))
@given(scripts.scripts, scripts.chat_options)
def test_the_usage_is_that_of_the_operator_and_of_the_result(script: Any, options: Any) -> None:
    items = list(rxllm.stream(engine(script), "Hi", **options).pipe(ops.errors_as_events(), ops.timed()).catch(_end))
    run = timeline(items)
    has_error = any(isinstance(item.item, ErrorEvent) for item in items)
    totals = list(from_iterable(item.item for item in items).pipe(ops.usage(), ops.errors_as_events()))
    if not has_error:
        assert run.usage == (totals[-1] if totals else Usage())
    if items and isinstance(items[-1].item, ChatCompleted):
        assert run.usage == items[-1].item.result.usage
    assert run.seconds == (items[-1].at if items else 0)
    assert all(bar.end is not None for top in run.rows for _, row in top.walk() for bar in row.bars)
    ElementTree.fromstring(run.svg())


def _end(error: Exception, source: Any) -> Any:
    return empty()


# Live and later


def test_a_recording_is_the_same_picture(tmp_path: Path) -> None:
    path = tmp_path / "sea.jsonl"
    live = in_virtual_time(sea(search, weather).pipe(record(path), ops.timed()))
    assert timeline(timed_file(path).to_list().run()).svg() == timeline(live).svg()


def test_a_recording_of_a_failure_ends_with_its_error(tmp_path: Path) -> None:
    failing = rxllm.stream_generate(Fake(AdapterError("invalid_request", "no")), "Hi").pipe(
        record(tmp_path / "x.jsonl")
    )
    in_virtual_time(failing)
    assert timeline(timed_file(tmp_path / "x.jsonl").to_list().run()).error == "no"


def test_a_cassette_is_drawn_answer_by_answer(tmp_path: Path) -> None:
    tape = Engine(Cassette(tmp_path / "tape.jsonl", Fake("one", "two")), model="m")
    for question in ("1?", "2?"):
        rxllm.generate(tape, question).run()
    run = timeline(timed_file(tmp_path / "tape.jsonl").to_list().run())
    assert shape(run.rows) == ["1. m", ["response"], "2. m", ["response"]]


def test_a_durable_run_is_the_same_picture_live_and_from_its_log(tmp_path: Path) -> None:
    def build(prompt: Any) -> Any:
        return rxllm.stream(Fake(["One", ("delay", 0.05), " two"]), prompt)

    with open_runs(str(tmp_path / "runs.db"), {"build": build}) as runs:
        id = runs.start("build", "Count").run()
        live = list(runs.watch(id, timed=True))
        later = list(runs.watch(id, timed=True))
        assert [item.item for item in later] == list(runs.watch(id))
        assert list(runs.watch(id, 3, timed=True)) == later[3:]
        with pytest.raises(ValidationError, match="folded"):
            runs.watch(id, folded=True, timed=True)  # type: ignore[call-overload]
    assert timeline(live).svg() == timeline(later).svg()
    ticks = timeline(live).rows[0].bars[-1].ticks
    assert 0.05 <= ticks[1] - ticks[0] < 5


def test_a_simulated_run_is_the_same_picture_for_the_same_seed() -> None:
    pictures = {simulate(lambda world: _draw(sea(search, POET)), seed=3, faults=()).value.svg() for _ in range(2)}
    assert len(pictures) == 1


def test_a_result_of_timed_events_shows_its_timeline() -> None:
    stream = rxllm.stream(Fake(["Hel", "lo"]), "Hi")
    result = stream.pipe(ops.timed(), ops.to_chat_result()).run()
    assert result == stream.pipe(ops.to_chat_result()).run()
    assert serializer.from_json(serializer.to_json(result)) == result
    assert "<svg" in result._repr_html_()
    assert "<svg" not in stream.pipe(ops.to_chat_result()).run()._repr_html_()
    assert shape(timeline(result).rows) == ["step 1"]


def test_a_stream_of_timed_events_keeps_its_times(capsys: pytest.CaptureFixture[str]) -> None:
    items = [Timed(2.0, TextDelta("a")), Timed(3.0, TextDelta("b"))]
    run = timeline(rxllm.Stream.of(from_iterable(items)))
    assert (run.seconds, run.rows[0].ttft) == (3.0, 2.0)
    assert run.result.output_text == "ab"
    assert "2.0 s TTFT" in capsys.readouterr().out


# The picture


def test_ten_thousand_deltas_become_a_density() -> None:
    items = [Timed(1 + number / 1000, TextDelta("x")) for number in range(10_000)]
    drawn = timeline(items).svg()
    assert len(drawn) < 15_000
    assert len(timeline(items[:50]).svg()) > 2_000


def test_a_long_run_draws_its_first_rows_and_counts_the_others() -> None:
    items = [
        Timed(number, event)
        for number in range(1000)
        for event in (ToolExecutionStarted(f"c{number}", "f", {}), ToolExecutionCompleted(f"c{number}", "f"))
    ]
    run = timeline(items)
    assert len(run.rows) == 1000
    assert "800 more rows" in run.svg()
    assert "800 more rows" in str(run)


@settings(deadline=None, max_examples=examples(100))
@given(st.text(), st.text(), st.text(), st.lists(st.floats(0, 1e6), min_size=2, max_size=2))
def test_any_text_and_time_is_a_valid_picture(name: str, argument: str, error: str, times: list[float]) -> None:
    start, end = sorted(times)
    events = [ToolExecutionStarted("c", name, {"x": argument}), TextDelta("hm")]
    failed = ToolExecutionCompleted("c", name, None, rxllm.ToolError("handler_raised", error))
    run = timeline([*(Timed(start, Labelled(name, event)) for event in events), Timed(end, Labelled(name, failed))])
    picture = ElementTree.fromstring(run.svg())
    assert picture.tag == f"{SVG}svg"
    assert not picture.findall(f".//{SVG}script")
    assert picture.find(f"{SVG}desc") is not None
    for text in picture.iter(f"{SVG}text"):
        room = 44 if float(text.get("x", 0)) > 800 else 160
        assert len(text.text or "") <= room


def test_every_bar_has_a_hover_title_and_the_table_has_the_figures() -> None:
    run = timeline(timed(sea(search, weather)))
    picture = ElementTree.fromstring(run.svg())
    count = sum(len(row.bars) for top in run.rows for _, row in top.walk())
    titles = [group.findtext(f"{SVG}title") for group in picture.iter(f"{SVG}g")]
    assert len(titles) == count
    assert "text, 0.75 s to 1.0 s, 0.25 s" in titles
    assert run.svg().count("currentColor") >= 8
    cells = re.findall(r"<td[^>]*>(.*?)</td>", run.html())
    assert {"weather · Oslo", "0.50 s TTFT · 96 tok · 192/s", "0.90 s · ValueError: no station in Oslo"} <= {*cells}


def test_the_picture_inherits_its_colours_and_has_no_style_but_in_a_file(tmp_path: Path) -> None:
    run = timeline([Timed(1.0, TextDelta("a"))], title="Mine")
    assert "<style" not in run.html()
    run.svg(tmp_path / "run.svg")
    assert run.svg() == (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert "prefers-color-scheme" in run.svg()
    assert ">Mine</text>" in run.html()


def test_a_timeline_is_text_where_there_are_no_pictures() -> None:
    run = timeline(timed(sea(search, weather)))
    assert str(run).splitlines()[2].startswith("step 1")
    assert run._repr_mimebundle_()["text/plain"] == str(run)
    assert repr(run) == f"Timeline({run.summary!r})"


@pytest.mark.parametrize("source", ["text", 3, [TextDelta("a")], rxllm.Response()])
def test_anything_else_is_refused(source: Any) -> None:
    with pytest.raises(ValidationError, match=r"ops\.timed\(\)"):
        timeline(source)


@pytest.mark.parametrize("at", [-1.0, float("nan"), float("inf"), 1e300])
def test_a_time_that_no_run_has_is_refused(at: float) -> None:
    with pytest.raises(ValidationError, match="times must be between 0"):
        timeline([Timed(0.0, TextDelta("a")), Timed(at, TextDelta("b"))])


def test_a_wrong_note_stays_in_the_picture() -> None:
    lost = [{"name": "stream 0", "began": 2e8, "ended": 9e8}]
    done = MessageCompleted(rxllm.assistant("a"), "stop", metadata={"race": {"winner": 1, "began": 1e9, "lost": lost}})
    drawn = timeline([Timed(0.0, TextDelta("a")), Timed(1.0, done)]).svg()
    assert len(drawn) < 10_000
    boxes = ElementTree.fromstring(drawn).iter(f"{SVG}rect")
    assert all(float(box.get("x", 0)) + float(box.get("width", 0)) <= 1100 for box in boxes)


@pytest.mark.parametrize("note", ["yes", {"lost": 3}, {"lost": [{"name": 1}]}, {"began": "x"}, {"winner": "b"}])
def test_metadata_of_another_form_is_not_a_note(note: Any) -> None:
    done = MessageCompleted(rxllm.assistant("a"), "stop", metadata={"race": note, "retry": note})
    run = timeline([Timed(0.0, TextDelta("a")), Timed(1.0, done)])
    assert [bars(row) for row in run.rows] == [[("waiting", 0, 0), ("text", 0, 1)]]


def test_a_run_that_has_not_ended_is_drawn_up_to_its_last_event() -> None:
    run = Timeline()
    for at in (1.0, 2.0, 3.0):
        run.add(Timed(at, TextDelta("a")))
    assert run.seconds == 3
    run.pass_time(5.0)
    assert (run.seconds, run.rows[0].bars[-1].end) == (5, None)
    assert "5.0 s" in str(run)
    run.finish()
    assert run.rows[0].bars[-1].end == 5


def test_an_empty_run_is_drawn() -> None:
    run = timeline([])
    assert (run.rows, run.seconds) == ([], 0)
    ElementTree.fromstring(run.svg())


def test_a_pipe_on_a_loop_is_drawn_from_its_timed_events() -> None:
    async def run() -> Timeline:
        return timeline(await rxllm.stream(Fake("Hi"), "Hello").pipe(ops.timed()).to_list())

    assert shape(asyncio.run(run()).rows) == ["step 1"]
