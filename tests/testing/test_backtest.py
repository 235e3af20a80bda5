"""Backtests: what pipelines do with recordings in virtual time is what they do with the live streams."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reactivex import Observable, from_iterable
from reactivex import operators as rx
from reactivex.testing import TestScheduler

from rxllm import Engine, Fake, OpenAIChat, generate, models, stream_generate
from rxllm import operators as ops
from rxllm.events import Nested, TextDelta
from rxllm.runtime import LoopScheduler, Stream
from rxllm.testing import Backtest, Cassette, World, backtest, events, record, simulate
from rxllm.testing.loopback import Cut, Loopback, Pause, Reply, chat_chunk, chat_finish
from rxllm.testing.marbles import record as noted
from rxllm.values import AdapterError, ModelInfo, StreamError, Usage, ValidationError
from tests.corpus import recordings
from tests.coverage import decode


def tape(path: Path, *script: Any) -> Path:
    """Record a script of `Fake` in virtual time."""
    scheduler = TestScheduler()
    noted(scheduler, lambda: stream_generate(Fake(list(script)), "Hi", retry=False).pipe(record(path)))
    return path


def summary(result: Backtest, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(row, name) for name in names) for row in result]


def test_a_row_says_what_was_shown_and_when(tmp_path: Path) -> None:
    path = tape(tmp_path / "a.jsonl", ("delay", 2), "Hel", ("delay", 4), "lo", Usage(3, 2))
    (row,) = backtest(path, ops.only(TextDelta))
    assert (row.recording, row.outcome, row.text, row.items) == ("a.jsonl", "completed", "Hello", 2)
    assert (row.first_at, row.ended_at, row.cut_at) == (2.0, 6.0, None)
    assert (row.tokens, row.cost, row.missing, row.error) == (5, None, (), None)
    assert [(at, kind) for at, kind, _ in row.notes()] == [(2.0, "next"), (6.0, "next"), (6.0, "completed")]


def test_a_row_says_where_it_was_cut(tmp_path: Path) -> None:
    path = tape(tmp_path / "a.jsonl", "Hel", ("delay", 4), "lo", Usage(3, 2))
    (row,) = backtest(path, [ops.time_limits(idle=3)])
    assert (row.outcome, row.text, row.cut_at, row.ended_at, row.tokens) == ("error", "Hel", 3.0, 3.0, None)
    assert isinstance(row.error, StreamError)
    (row,) = backtest(path, rx.take(2))
    assert (row.outcome, row.cut_at) == ("completed", 0.0)


def test_pipelines_are_functions_or_lists_of_operators(tmp_path: Path) -> None:
    path = tape(tmp_path / "a.jsonl", "Hel", "lo")
    pipelines: list[Any] = [
        ops.to_text(),
        [ops.only(TextDelta), ops.to_text()],
        lambda source: source.pipe(ops.to_text()),
        (ops.to_text(),),
    ]
    assert {backtest(path, pipeline)[0].text for pipeline in pipelines} == {"Hello"}
    assert backtest(path, [])[0].items == len(events("Hel", "lo"))


def test_a_hedge_lacks_the_second_answer(tmp_path: Path) -> None:
    tape(tmp_path / "slow.jsonl", ("delay", 9), "Late.")
    tape(tmp_path / "quick.jsonl", ("delay", 1), "Quick.")
    result = backtest(tmp_path, ops.hedge(after=2))
    missing = ((2.0, "another answer to the same request"),)
    assert summary(result, "recording", "outcome", "text", "missing") == [
        ("quick.jsonl", "completed", "Quick.", ()),
        ("slow.jsonl", "completed", "Late.", missing),
    ]
    assert "not recorded" in repr(result)


def test_a_retry_lacks_its_second_attempt_unless_the_cassette_has_it(tmp_path: Path) -> None:
    quick = {"base_delay": 1.0, "jitter": 0.0}
    tape(tmp_path / "down.jsonl", AdapterError("rate_limited"))
    (row,) = backtest(tmp_path, ops.retry_before_content(quick))
    assert (row.outcome, row.missing) == ("unanswered", ((1.0, "another answer to the same request"),))
    path = tmp_path / "tape.jsonl"
    cassette = Cassette(path, Fake(AdapterError("rate_limited"), "Now."), "record")
    generate(cassette, "Hi", retry={"base_delay": 0.0, "jitter": 0.0}).run()
    rows = backtest(path, ops.retry_before_content(quick))
    assert summary(rows, "recording", "outcome", "text", "missing") == [
        ("tape.jsonl#1", "completed", "Now.", ()),
        ("tape.jsonl#2", "completed", "Now.", ()),
    ]
    assert rows[0].first_at == pytest.approx(1.0, abs=0.2)


@pytest.mark.sockets
def test_a_fallback_answers_from_a_cassette_or_says_what_it_lacks(tmp_path: Path) -> None:
    path, other = tmp_path / "tape.jsonl", tmp_path / "others" / "other.jsonl"
    down = Fake(AdapterError("provider_unavailable"))
    with pytest.raises(AdapterError):
        generate(Engine(Cassette(path, down, "record"), "m"), "Hi", retry=False).run()
    generate(Engine(Cassette(other, Fake("From the other.")), "n"), "Hi").run()
    (row,) = backtest(path, ops.fallback(Engine(Cassette(other, Fake("no"), "replay"), "n")))
    assert (row.outcome, row.text, row.missing) == ("completed", "From the other.", ())
    (row,) = backtest(path, ops.fallback(Engine(Cassette(other, Fake("no"), "replay"), "unknown")))
    assert (row.outcome, row.missing) == ("unanswered", ((row.missing[0][0], "an answer from Fake:unknown"),))
    with Loopback() as server:
        (row,) = backtest(path, ops.fallback(Engine(OpenAIChat(base_url=server.url), "gpt")))
        assert server.requests == []
    assert (row.outcome, row.missing[0][1]) == ("unanswered", "an answer from openai:gpt")
    (row,) = backtest(path, ops.fallback(Fake("Scripted.")))
    assert row.text == "Scripted."


def test_a_recording_that_was_left_lacks_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    stream_generate(Fake("Hello"), "Hi").pipe(record(path)).take(2).run()
    (row,) = backtest(path, [])
    assert (row.outcome, row.text, row.missing[0][1]) == (
        "unanswered",
        "Hello",
        "the unrecorded part of an answer",
    )
    (row,) = backtest(path, rx.take(2))
    assert (row.outcome, row.missing) == ("completed", ())


def test_prices_are_those_of_the_model(tmp_path: Path) -> None:
    models.put(ModelInfo("backtests:priced", input_price=1.0, output_price=2.0))

    class Priced(Fake):
        provider = "backtests"

    path = tmp_path / "tape.jsonl"
    engine = Engine(Cassette(path, Priced(["Yes.", Usage(1_000_000, 1_000_000)])), "priced")
    live = generate(engine, "Hi").run().usage.total_cost
    (row,) = backtest(path, [])
    assert row.cost == live == 3.0
    assert "cost 3" in repr(backtest(path, []))


def test_an_unreadable_file_is_a_row_among_the_others(tmp_path: Path) -> None:
    tape(tmp_path / "a.jsonl", "One.")
    (tmp_path / "b.jsonl").write_text("no json\n")
    tape(tmp_path / "c.jsonl", "Three.")
    result = backtest(tmp_path, [])
    assert summary(result, "outcome") == [("completed",), ("unreadable",), ("completed",)]
    assert isinstance(result[1].error, ValidationError)
    assert result[1].notes() == []


def test_files_are_read_when_their_turn_comes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jsonl" for number in range(3)]
    tape(paths[0], "0")
    done: list[str] = []

    def progress(row: Any) -> None:
        done.append(row.text)
        if len(done) < len(paths):
            tape(paths[len(done)], str(len(done)))

    backtest(iter(paths), [], progress=progress)
    assert done == ["0", "1", "2"]


def test_streams_stand_in_the_place_of_files() -> None:
    result = backtest([from_iterable(events("Hi")), from_iterable([])], ops.text())
    assert summary(result, "text", "outcome") == [("Hi", "completed"), ("", "completed")]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    path = tape(tmp_path / "a.jsonl", "Hi")
    with pytest.raises(ValidationError, match="operators"):
        backtest(path, [ops.text, ops.text()])  # pyright: ignore[reportArgumentType]
    for pipeline in (path, None, "text", 3, Engine(Fake("Hi"))):  # the first as by arguments in the wrong order
        with pytest.raises(ValidationError, match="pipeline must be an operator, or a list of operators, not"):
            backtest(path, pipeline)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="progress must be a function, not 3"):
        backtest(path, [], progress=3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="there are no recordings"):
        backtest(tmp_path / "nowhere", [])
    with pytest.raises(ValidationError, match="backtest: source must be an Observable"):
        backtest(path, lambda source: 5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        backtest(5, [])  # pyright: ignore[reportArgumentType]


def test_an_operator_that_raises_ends_its_row(tmp_path: Path) -> None:
    def boom(event: Any) -> Any:
        raise KeyError("boom")

    path = tape(tmp_path / "a.jsonl", "Hi")
    (row,) = backtest(path, rx.map(boom))
    assert (row.outcome, type(row.error)) == ("error", KeyError)


def test_it_ends_though_its_pipeline_never_does(tmp_path: Path) -> None:
    path = tape(tmp_path / "a.jsonl", "Hi")
    (row,) = backtest(path, lambda source: source.pipe(rx.merge(Observable(lambda observer, scheduler=None: None))))  # pyright: ignore[reportArgumentType]
    assert (row.outcome, row.ended_at, row.cut_at) == ("unanswered", None, None)


def test_the_table_is_text_markdown_and_rows(tmp_path: Path) -> None:
    tape(tmp_path / "a.jsonl", "Hel", ("delay", 4), "a | b", Usage(3, 2))
    tape(tmp_path / "b.jsonl", "Hi")
    result = backtest(tmp_path, ops.time_limits(idle=5))
    assert repr(result).splitlines() == [
        "recording  outcome    first    end      items  tokens  text",
        "a.jsonl    completed  0.000 s  4.000 s  6      5       Hela | b",
        "b.jsonl    completed  0.000 s  0.000 s  4              Hi",
        "2 recordings: 2 completed, 5 tokens",
    ]
    assert "| Hela \\| b |" in result._repr_markdown_()
    assert [row["text"] for row in result.to_dicts()] == ["Hela | b", "Hi"]
    assert repr(backtest([], [])).endswith("0 recordings: nothing")
    many = backtest([from_iterable(events("x"))] * 60, [])
    assert len(repr(many).splitlines()) == 52
    assert "10 more rows; 60 recordings" in repr(many)


def test_raw_recordings_of_providers_are_run_as_their_events() -> None:
    answers = [decode(recording.api, recording.body) for recording in recordings("openai-chat")[:100]]
    result = backtest(map(from_iterable, answers), [ops.errors_as_events(), ops.verify()])
    assert len(result) == len(answers) > 50
    assert [row.items for row in result] == [len(answer) for answer in answers]
    texts = ["".join(event.delta for event in answer if isinstance(event, TextDelta)) for answer in answers]
    assert [row.text for row in result] == texts


def test_an_async_check_fails_and_says_what_to_write() -> None:
    async def check(text: str) -> None: ...

    (row,) = backtest([from_iterable(events("Hello."))], ops.guard(check))
    assert isinstance(row.error, StreamError)
    assert (row.outcome, row.error.reason) == ("error", "guard_failed")
    assert "under virtual time, use a plain function or an Observable" in row.error.message


# Backtest equals live

GAP = 1.0
POLICIES: dict[str, Callable[[Observable[Any]], Observable[Any]]] = {
    "idle": ops.time_limits(idle=GAP / 2),
    "first": ops.time_limits(first=0.6 * GAP),
    "total": ops.time_limits(total=1.65 * GAP),
    "take": rx.take(7),
    "budget": ops.budget(tokens=12),
    "smooth": ops.smooth(0.1),
    "snapshots": ops.snapshots(0.3 * GAP),
    "debounce": rx.debounce(GAP / 2),
    "delay": rx.delay(0.3),
    "words": ops.words(),
    "scan": ops.scan_collect(),
    "sentences": ops.sentences(),
    "usage": ops.usage(),
}


def body(seed: int) -> Reply:
    """A stream of words in bursts, with pauses of `GAP` seconds; some break off, some are refused."""
    draw = random.Random(seed)
    if draw.random() < 0.05:
        return Reply.of_json({"error": {"message": "slow down"}}, 429)
    frames: list[Any] = [Pause(GAP)] if draw.random() < 0.2 else []
    for burst in range(draw.randint(1, 3)):
        frames += [Pause(GAP)] if burst else []
        for _ in range(draw.randint(1, 12)):
            frames += [chat_chunk("".join(draw.choices("abcdef", k=draw.randint(1, 6))) + " "), Pause(0.003)]
    if draw.random() < 0.2:
        return Reply([*frames, Cut.RESET])
    usage = {"prompt_tokens": 9, "completion_tokens": len(frames)}
    return Reply([*frames, chat_finish(usage=usage), b"data: [DONE]\n\n"])


def run_live(folder: Path, seeds: range) -> dict[tuple[str, str], list[Any]]:
    """Call a server for each seed, in virtual time, and record each stream while all policies see it live.

    Return what they showed.
    """
    shown: dict[tuple[str, str], list[Any]] = {}

    async def app(world: World) -> None:
        loop = asyncio.get_running_loop()
        ended: list[asyncio.Future[None]] = []

        def watch(key: tuple[str, str], source: Observable[Any]) -> None:
            notes = shown[key] = []
            began, end = loop.time(), loop.create_future()
            ended.append(end)

            def note(kind: str, item: Any = None) -> None:
                notes.append((loop.time() - began, kind, item))
                if kind != "next":
                    end.set_result(None)

            source.subscribe(
                lambda item: note("next", item),
                lambda error: note("error", error),
                lambda: note("completed"),
                scheduler=LoopScheduler(loop),
            )

        server = world.serve(lambda request: body(int(request.json["messages"][-1]["content"])))
        adapter = OpenAIChat(base_url=server.url)
        for seed in seeds:
            call = stream_generate(adapter, str(seed), model="m", retry=False).pipe(record(folder / named(seed)))
            shared = call.publish()
            watch((named(seed), "whole"), shared)
            for policy, operator in POLICIES.items():
                watch((named(seed), policy), shared.pipe(operator))
            shared.connect()
        await asyncio.gather(*ended)

    simulate(app, faults=())
    return shown


def named(seed: int) -> str:
    return f"{seed:03}.jsonl"


def items(notes: list[Any]) -> list[Any]:
    return [(kind, item) for _, kind, item in notes]


@pytest.mark.judges
def test_a_backtest_equals_the_live_run(tmp_path: Path) -> None:
    """A hundred streams from a server; what is compared is every item, error and end, and their times."""
    seeds = range(100)
    live, lags = run_live(tmp_path, seeds), list[float]()
    for policy, operator in [*POLICIES.items(), ("whole", Stream.of)]:
        for row in backtest([tmp_path / named(seed) for seed in seeds], operator):
            expected, notes = live[row.recording, policy], row.notes()
            assert items(notes) == items(expected), (policy, row.recording)
            lags += [abs(at - other) for (at, _, _), (other, _, _) in zip(notes, expected, strict=True)]
    assert max(lags) < 0.1


def test_an_agent_counts_and_its_text_is_not_the_chats() -> None:
    nested = [Nested(("c1",), event) for event in events("of the agent", usage=Usage(3, 2))]
    (row,) = backtest(from_iterable([*events("of the chat", usage=Usage(10)), *nested]), ops.tap(lambda event: None))
    assert (row.text, row.tokens, row.items) == ("of the chat", 15, 10)
