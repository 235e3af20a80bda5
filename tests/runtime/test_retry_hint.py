"""reactivex's ``.retry`` and ``.catch`` on a stream that ends with an `ErrorEvent`: the log has a hint, once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import reactivex

from rxllm import AdapterError, ErrorEvent, Event, Fake, Stream, generate, stream_generate
from rxllm import operators as ops
from rxllm.runtime import _stream_methods

METHODS: dict[str, Callable[[Stream[Any]], Stream[Any]]] = {
    "retry": lambda stream: stream.retry(3),
    "catch": lambda stream: stream.catch(reactivex.of("other")),
}

BY_METHOD = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_stream_methods, "_hinted", set())
    caplog.set_level(logging.WARNING, "rxllm")


def broken() -> Stream[Event]:
    """A stream that breaks off the first time."""
    return stream_generate(Fake(["2, 3", ("error", "provider_unavailable")], ["2, 3, 5"]), "Hi", retry=False)


@BY_METHOD
def test_an_error_event_passes_with_a_hint(name: str, caplog: pytest.LogCaptureFixture) -> None:
    events = list(METHODS[name](broken()))
    assert type(events[-1]) is ErrorEvent
    (line,) = caplog.messages
    assert line.startswith(f".{name}(...) ignores an ErrorEvent, but the stream ended with one: AdapterError(")
    assert f"; write .pipe(ops.raise_errors()).{name}(...)" in line
    assert len(line) < 300


@BY_METHOD
def test_a_program_gets_one_hint(name: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        list(METHODS[name](broken()))
    assert len(caplog.messages) == 1


@BY_METHOD
def test_what_the_hint_says_works(name: str, caplog: pytest.LogCaptureFixture) -> None:
    items = list(METHODS[name](broken().pipe(ops.raise_errors())))
    assert type(items[-1]) is not ErrorEvent
    assert caplog.messages == []


@BY_METHOD
def test_no_other_stream_gets_a_hint(name: str, caplog: pytest.LogCaptureFixture) -> None:
    list(METHODS[name](stream_generate(Fake("2, 3, 5"), "Hi")))
    list(METHODS[name](Stream.of(reactivex.of(1, 2))))
    refused = stream_generate(Fake(AdapterError("rate_limited"), "2, 3, 5"), "Hi", retry=False)
    assert type(list(METHODS[name](refused))[-1]) is not ErrorEvent
    assert caplog.messages == []


def test_whole_answers_are_repeated() -> None:
    assert broken().pipe(ops.raise_errors(), ops.to_text()).retry(3).run() == "2, 3, 5"
    fake = Fake(["2, 3", ("error", "provider_unavailable")], "2, 3, 5")
    answer = generate(fake, "Hi", retry=False).map(lambda response: response.raise_for_error())
    assert answer.retry(3).run().output_text == "2, 3, 5"
    assert len(fake.requests) == 2
