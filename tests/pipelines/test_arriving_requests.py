"""`generate_many` of requests that arrive over time, and batches that fail as a whole."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import reactivex
from reactivex.subject import Subject

import rxllm
from rxllm import AdapterError, EngineError, Fake, Request, Response, Stream, ValidationError
from rxllm.runtime import MAX_WAITING
from rxllm.testing import simulate
from tests.waiting import PATIENCE, wait_until


def shout(request: Request) -> Any:
    text = request.messages[-1].text
    return AdapterError("invalid_request") if text == "no" else text.upper()


async def letters() -> AsyncIterator[str]:
    for letter in "abc":
        yield letter


class Letters:
    def __aiter__(self) -> AsyncIterator[str]:
        return letters()


def texts(responses: list[Response[Any]]) -> list[str]:
    return [response.output_text for response in responses]


SOURCES: dict[str, Callable[[], Any]] = {
    "an Observable": lambda: reactivex.of("a", "b", "c"),
    "a Stream": lambda: Stream.of(reactivex.of("a", "b", "c")),
    "a Stream of another call": lambda: rxllm.stream_generate(Fake(["a", "b", "c"]), "Hi").pipe(rxllm.operators.text()),
    "an async generator": letters,
    "an async iterable": Letters,
    "a hot source": lambda: reactivex.of("a", "b", "c").pipe(reactivex.operators.share()),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("ordered", [True, False])
def test_requests_are_asked_as_they_arrive(name: str, ordered: bool) -> None:
    responses = rxllm.generate_many(Fake(shout), SOURCES[name](), ordered=ordered, concurrency=2)
    assert texts(responses.run()) == ["A", "B", "C"]


def test_a_source_waits_while_all_places_are_taken() -> None:
    taken: list[int] = []

    async def numbers() -> AsyncIterator[str]:
        for number in range(100):
            taken.append(number)
            yield str(number)

    async def app(_: Any) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        slow = Fake(lambda request: [("delay", 1.0), request.messages[-1].text])
        async for response in rxllm.generate_many(slow, numbers(), concurrency=3):
            seen.append((int(response.output_text), len(taken)))
        return seen

    seen = simulate(app, faults=()).value
    assert [number for number, _ in seen] == list(range(100))
    assert max(count - number for number, count in seen) <= 3 + 3 + 1  # of two rounds, and one that waits


def test_no_more_answers_than_a_few_wait_for_an_earlier_one() -> None:
    asked: list[str] = []

    async def numbers() -> AsyncIterator[str]:
        for number in range(10 * MAX_WAITING):
            yield str(number)

    def answer(request: Request) -> Any:
        asked.append(request.messages[-1].text)
        return [("delay", 1000.0 if asked[-1] == "0" else 1.0), asked[-1]]

    async def app(_: Any) -> tuple[int, int]:
        first, total = 0, 0
        async for _ in rxllm.generate_many(Fake(answer), numbers(), concurrency=4):
            first, total = first or len(asked), total + 1
        return first, total

    first, total = simulate(app, faults=()).value
    assert first <= MAX_WAITING + 2 * 4 + 1
    assert total == 10 * MAX_WAITING


@pytest.mark.parametrize("ordered", [True, False])
def test_a_failure_is_a_response_also_of_an_invalid_request(ordered: bool) -> None:
    responses = rxllm.generate_many(Fake(shout), reactivex.of("a", "no", 5, "b"), ordered=ordered).run()
    assert texts(responses) == ["A", "", "", "B"]
    assert [response.error and response.error.reason for response in responses] == [
        None, "invalid_request", "invalid_thread", None,
    ]  # fmt: skip
    assert "requests.2 must be text" in str(responses[2].error)


def test_a_source_that_fails_ends_the_stream_after_the_requests_that_have_arrived() -> None:
    async def broken() -> AsyncIterator[str]:
        yield "a"
        yield "b"
        raise KeyError("mine")

    answers: list[Any] = []
    slow = Fake(lambda request: [("delay", 0.001), request.messages[-1].text])
    with pytest.raises(KeyError, match="mine"):
        rxllm.generate_many(slow, broken()).do_action(answers.append).run()
    assert texts(answers) == ["a", "b"]


def test_a_source_without_requests_gives_no_responses() -> None:
    assert rxllm.generate_many(Fake("Hi"), reactivex.empty()).run() == []


def test_dispose_closes_the_source_and_the_calls() -> None:
    closed: list[str] = []

    async def endless() -> AsyncIterator[str]:
        try:
            while True:
                yield "a"
        finally:
            closed.append("source")

    fake = Fake(shout)
    assert texts(list(rxllm.generate_many(fake, endless(), concurrency=2).take(5))) == ["A"] * 5
    wait_until(lambda: closed)
    assert len(fake.requests) <= 5 + 2 + MAX_WAITING


def test_an_async_iterator_is_read_once_and_a_second_subscription_says_so() -> None:
    responses = rxllm.generate_many(Fake(shout), letters())
    assert texts(responses.run()) == ["A", "B", "C"]
    with pytest.raises(ValidationError, match=r"read only once; pass rxllm\.from_async_iter\(function\)"):
        responses.run()
    again = rxllm.generate_many(Fake(shout), rxllm.from_async_iter(letters))
    assert texts(again.run()) == texts(again.run()) == ["A", "B", "C"]


def test_requests_pushed_by_another_thread_are_asked() -> None:
    pushed, answers, ended = Subject[str](), list[Any](), threading.Event()
    rxllm.generate_many(Fake(shout), pushed, concurrency=2).subscribe(answers.append, on_completed=ended.set)

    def push() -> None:
        for number in range(50):
            pushed.on_next(f"n{number}")
        pushed.on_completed()

    thread = threading.Thread(target=push)
    thread.start()
    thread.join(PATIENCE)
    wait_until(ended.is_set)
    assert texts(answers) == [f"N{number}" for number in range(50)]


def test_a_source_that_cannot_wait_is_cut_off_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxllm.runtime._arriving.LIMIT", 3)
    slow = Fake(lambda request: [("delay", 0.001), "Hi"])
    errors: list[Exception] = []
    pushed = Subject[str]()
    rxllm.generate_many(slow, pushed, concurrency=1).subscribe(on_error=errors.append)
    for _ in range(5):
        pushed.on_next("a")
    assert [getattr(error, "reason", error) for error in wait_until(lambda: errors)] == ["overflow"]


def test_progress_counts_the_requests_that_have_arrived() -> None:
    totals: list[tuple[int, int]] = []
    fake = Fake(shout)
    rxllm.generate_many(fake, letters(), on_progress=lambda now: totals.append((now.done, now.total))).run()
    assert [done for done, _ in totals] == [1, 2, 3]
    assert totals[-1] == (3, 3)


def test_a_journal_needs_a_list(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="journal needs all requests in advance; pass them as a list"):
        rxllm.generate_many(Fake("Hi"), reactivex.of("a"), journal=tmp_path / "out.jsonl")


class Frame:
    """What pandas, polars and pyarrow have in common: iterating over a table does not yield its rows."""

    def __init__(self, columns: list[Any], **names: Any) -> None:
        self.columns = columns
        vars(self).update(names)

    def __iter__(self) -> Any:
        return iter(self.columns)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (Frame(["review", "stars"]), r"such as df\['review'\]"),
        (Frame([0, 1]), r"such as df\['column'\]"),
        (Frame([[1], [2]], column_names=["review"]), r"such as df\['review'\]"),
    ],
)
def test_a_table_is_refused_with_the_column_to_pass(frame: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        rxllm.generate_many(Fake("Hi"), frame)


# A batch that fails as a whole


@pytest.mark.parametrize(
    "error",
    [EngineError("missing_key", "no key"), EngineError("missing_model"), AdapterError("authentication_failed", "no")],
    ids=lambda error: error.reason,
)
@pytest.mark.parametrize("arriving", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_of_the_setup_is_raised_once(error: Exception, arriving: bool, ordered: bool) -> None:
    asked = ["a"] * 100
    fake = Fake(lambda request: error)
    requests: Any = reactivex.from_iterable(asked) if arriving else asked
    with pytest.raises(type(error)) as caught:
        rxllm.generate_many(fake, requests, ordered=ordered, concurrency=4).run()
    assert caught.value.reason == error.reason  # type: ignore[attr-defined]
    assert len(fake.requests) <= 4


def test_a_missing_key_is_raised_once_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(EngineError, match="OPENAI_API_KEY"):
        rxllm.generate_many("openai:gpt-5", ["a"] * 200).run()


def test_once_a_request_is_answered_such_an_error_is_a_response() -> None:
    def answer(request: Request) -> Any:
        return EngineError("missing_key") if request.messages[-1].text == "b" else "Hi"

    responses = rxllm.generate_many(Fake(answer), ["a", "b", "c"], concurrency=1).run()
    assert [response.error and response.error.reason for response in responses] == [None, "missing_key", None]


def test_answers_of_a_journal_do_not_hide_it(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    rxllm.generate_many(Fake("Hi"), ["a", "b"], journal=path).run()
    with pytest.raises(EngineError, match="no key"):
        rxllm.generate_many(
            Fake(lambda request: EngineError("missing_key", "no key")), ["a", "b", "c", "d"], journal=path
        ).run()
