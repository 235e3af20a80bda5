"""Iterators over a stream: when they subscribe, when they are closed, and how errors reach them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import reactivex
from reactivex import Subject
from reactivex import operators as rx

import rxllm
from rxllm import Engine, Fake, Stream, from_async_iter, stream_generate, to_async_iter, to_iter
from rxllm.testing.loopback import Loopback, Reply
from rxllm.testing.loopback import chat as said
from tests.closing import assert_closes
from tests.runtime.support import model
from tests.waiting import until

ANSWER = Reply(said("Hel", "lo"))


def ask(engine: Engine) -> Stream[str]:
    return stream_generate(engine, "Hi").pipe(rxllm.operators.to_text())


def test_for_on_a_running_loop_warns_with_the_other_form() -> None:
    async def main() -> None:
        with pytest.warns(RuntimeWarning, match="async for") as caught:
            assert list(ask(Engine(Fake("Hello")))) == ["Hello"]
        assert caught[0].filename == __file__

    asyncio.run(main())


def test_an_iterators_error_is_raised_after_the_items_and_once() -> None:
    items = iter(reactivex.of(1).pipe(rx.concat(reactivex.throw(KeyError("x")))).pipe(Stream.of))
    assert next(items) == 1
    with pytest.raises(KeyError):
        next(items)
    assert list(items) == []


@pytest.mark.sockets
def test_an_iterator_that_was_closed_gives_nothing() -> None:
    def leave(server: Loopback) -> None:
        items = rxllm.to_iter(stream_generate(model(server), "Hi"))
        next(items)
        items.close()
        items.close()
        assert list(items) == []

    assert_closes(leave)


@pytest.mark.sockets
def test_an_iterator_that_was_never_asked_makes_no_call() -> None:
    with Loopback(ANSWER) as server:
        rxllm.to_iter(ask(model(server))).close()
        iter(ask(model(server)))
        assert server.connections == []


def test_an_async_iterator_is_closed_when_it_is_left() -> None:
    closed: list[str] = []

    async def count() -> Any:
        try:
            for i in range(100):
                yield i
        finally:
            closed.append("yes")

    async def main() -> None:
        assert await from_async_iter(count).take(2) == 1
        await until(lambda: closed == ["yes"])

    asyncio.run(main())


def test_a_block_is_subscribed_when_it_is_entered() -> None:
    with to_iter(subject := Subject[int]()) as items:
        subject.on_next(1)
        subject.on_completed()
        assert list(items) == [1]


def test_an_async_block_is_subscribed_when_it_is_entered() -> None:
    async def main() -> list[int]:
        async with to_async_iter(subject := Subject[int]()) as items:
            subject.on_next(1)
            subject.on_completed()
            return [item async for item in items]

    assert asyncio.run(main()) == [1]
