"""Forgetting `.run()` or `await`: the stream says what it is, and what to write."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import reactivex

import rxllm
from rxllm import Engine, Fake, Session, Stream, session
from rxllm import operators as ops
from rxllm.images import FakeImages
from rxllm.values import Image
from tests.waiting import PATIENCE

UNTIL = "nothing is sent until .run(), await, asyncio.ensure_future(...), for or .subscribe()"
engine = Engine(Fake("Hello"), model="gpt-5")
bird = Image.from_binary(b"GIF89a", "image/gif")


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        (rxllm.stream_generate(engine, "Hi"), "events from stream_generate with gpt-5"),
        (rxllm.generate(engine, "Hi"), "one Response from generate with gpt-5"),
        (rxllm.generate(engine, "Hi", model="gpt-6"), "one Response from generate with gpt-6"),
        (rxllm.generate(engine, rxllm.request("Hi", model="gpt-6")), "one Response from generate with gpt-6"),
        (rxllm.generate(Fake("Hello"), "Hi"), "one Response from generate with Fake"),
        (rxllm.generate_many(engine, ["Hi"]), "Responses from generate_many with gpt-5"),
        (rxllm.stream_step(engine, "Hi"), "events from stream_step with gpt-5"),
        (rxllm.step(engine, "Hi"), "one StepResult from step with gpt-5"),
        (rxllm.stream(engine, "Hi"), "events from stream with gpt-5"),
        (rxllm.chat(engine, "Hi"), "one ChatResult from chat with gpt-5"),
        (rxllm.resume(engine, "Hi"), "one ChatResult from resume with gpt-5"),
        (rxllm.stream_resume(engine, "Hi"), "events from stream_resume with gpt-5"),
        (rxllm.generate_image(FakeImages(bird), "a kestrel"), "one ImageResponse from generate_image with FakeImages"),
        (rxllm.edit_image(FakeImages(bird), bird, "pink"), "one ImageResponse from edit_image with FakeImages"),
        (rxllm.image_variations(FakeImages(bird), bird), "one ImageResponse from image_variations with FakeImages"),
        (session.start(engine, "Hi"), "one Turn from session.start"),
        (session.reply(engine, Session(), "Hi"), "one Turn from session.reply"),
        (session.resume(engine, Session()), "one Turn from session.resume"),
        (session.step(engine, Session()), "one Turn from session.step"),
        (session.stream_reply(engine, Session(), "Hi"), "events from session.stream_reply"),
        (rxllm.stream_generate(engine, "Hi").pipe(ops.text()), "items from stream_generate with gpt-5"),
        (rxllm.stream_generate(engine, "Hi").map(str).take(3), "items from stream_generate with gpt-5"),
        (Stream.of(reactivex.of(1, 2)), "items"),
    ],
)
def test_a_stream_says_where_it_comes_from_and_that_it_has_not_run(stream: Stream[Any], what: str) -> None:
    assert repr(stream) == f"{stream}" == f"<Stream of {what}; {UNTIL}>"


def test_a_notebook_shows_it_as_the_value_of_a_cell() -> None:
    formatters = pytest.importorskip("IPython.core.formatters", reason="notebooks need rxllm[notebook]")
    data, _ = formatters.DisplayFormatter().format(rxllm.generate(engine, "Hi"))
    assert data == {"text/plain": f"<Stream of one Response from generate with gpt-5; {UNTIL}>"}


@pytest.mark.parametrize(
    ("stream", "attribute", "remedy"),
    [
        (rxllm.generate(engine, "Hi"), "output_text", "generate(...).run().output_text, or (await generate(...))"),
        (rxllm.generate(engine, "Hi"), "usage", "generate(...).run().usage"),
        (rxllm.generate(engine, "Hi"), "text", "generate(...).run().output_text"),
        (rxllm.generate(engine, "Hi"), "content", "generate(...).run().output_text"),
        (rxllm.generate(engine, "Hi"), "cost", "generate(...).run().usage.total_cost"),
        (rxllm.stream_step(engine, "Hi"), "tool_results", ".pipe(ops.to_step_result()).run().tool_results"),
        (rxllm.chat(engine, "Hi"), "thread", "chat(...).run().thread"),
        (rxllm.step(engine, "Hi"), "tool_results", "step(...).run().tool_results"),
        (rxllm.generate_image(FakeImages(bird), "a kestrel"), "images", "generate_image(...).run().images"),
        (session.start(engine, "Hi"), "session", "session.start(...).run().session"),
        (rxllm.stream_generate(engine, "Hi"), "output_text", "(...).pipe(ops.to_response()).run().output_text"),
        (rxllm.stream(engine, "Hi"), "halted_reason", "stream(...).pipe(ops.to_chat_result()).run().halted_reason"),
        (rxllm.stream(engine, "Hi"), "text", "text is an operator: write .pipe(ops.text(...))"),
        (rxllm.stream(engine, "Hi").pipe(ops.text()), "words", "words is an operator: write .pipe(ops.words(...))"),
        (rxllm.stream(engine, "Hi").pipe(ops.text()), "upper", "iterate over its items, or use .run() or await"),
        (rxllm.generate(engine, "Hi"), "fiter", "(did you mean 'filter'?)"),
    ],
)
def test_an_attribute_of_the_result_is_answered_with_what_to_write(
    stream: Stream[Any], attribute: str, remedy: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(stream, attribute)
    assert f"'Stream' object has no attribute {attribute!r}" in str(caught.value)
    assert remedy in str(caught.value)


def test_the_remedy_works() -> None:
    assert rxllm.generate(engine, "Hi").run().output_text == "Hello"
    assert rxllm.stream_generate(engine, "Hi").pipe(ops.to_response()).run().output_text == "Hello"

    async def main() -> str:
        return (await rxllm.generate(engine, "Hi")).output_text

    assert asyncio.run(main()) == "Hello"


def test_a_forgotten_await_is_answered_in_an_async_function_too() -> None:
    async def main() -> str:
        response: Any = rxllm.generate(engine, "Hi")
        return response.output_text

    with pytest.raises(AttributeError, match=r"\(await generate\(\.\.\.\)\)\.output_text in async code"):
        asyncio.run(main())


def test_asyncio_s_own_complaint_says_it_too() -> None:
    stream: Any = rxllm.generate(engine, "Hi")

    async def create_task() -> None:
        await asyncio.create_task(stream)

    for wrong in (create_task(), stream):
        with pytest.raises((TypeError, ValueError), match=r"<Stream of one Response .* asyncio\.ensure_future\("):
            asyncio.run(wrong)


def test_asyncio_takes_a_future_or_a_coroutine_of_it() -> None:
    async def last(stream: Stream[Any]) -> Any:
        return await stream

    async def main() -> None:
        stream = rxllm.generate(engine, "Hi")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(last(stream))
        answers = [
            await task,
            await asyncio.ensure_future(stream),
            *await asyncio.gather(stream, stream),
            await asyncio.wait_for(stream, PATIENCE),
        ]
        assert [answer.output_text for answer in answers] == ["Hello"] * 5

    asyncio.run(main())


def test_many_without_a_request_are_an_empty_list() -> None:
    assert list(rxllm.generate_many(engine, [])) == []
    assert rxllm.generate_many(engine, []).run() == []


@pytest.mark.parametrize(
    ("stream", "remedy"),
    [
        (rxllm.generate(engine, "Hi"), "write stream_generate(...) to get them"),
        (rxllm.step(engine, "Hi"), "write stream_step(...) to get them"),
        (rxllm.chat(engine, "Hi"), "write stream(...) to get them"),
        (session.start(engine, "Hi"), "write session.stream_start(...) to get them"),
        (reactivex.of("Hi"), "put it after stream(...)"),
    ],
)
def test_an_operator_on_events_after_a_result_is_told_which_stream_has_them(stream: Any, remedy: str) -> None:
    with pytest.raises(rxllm.StreamError) as caught:
        rxllm.run(stream.pipe(ops.text()))
    assert remedy in str(caught.value)


def test_an_attribute_of_the_result_is_not_found_on_the_stream() -> None:
    stream = rxllm.generate(engine, "Hi")
    assert not hasattr(stream, "output_text")
    assert not hasattr(stream, "_repr_html_")
    assert not hasattr(stream, "_ipython_display_")
    assert getattr(stream, "output_text", None) is None
    assert copy.copy(stream).run() == stream.run()
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(stream)


@pytest.mark.parametrize(
    "use",
    [
        lambda stream: stream["choices"],
        lambda stream: stream + "!",
    ],
)
def test_a_stream_cannot_be_used_like_its_result(use: Callable[[Any], object]) -> None:
    fake = Fake("Hello")
    with pytest.raises(TypeError, match=r"has not run yet; write generate\(...\).run\(\), or await it"):
        use(rxllm.generate(fake, "Hi"))
    assert fake.requests == []


def test_reactivex_s_items_and_sums_of_streams_stay() -> None:
    words = rxllm.stream_generate(Fake(["a", "b"]), "Hi").pipe(ops.text())
    assert (words[1].run(), list(words + words)) == ("b", ["a", "b", "a", "b"])
    collected = ["x"]
    collected += words  # a list takes whatever can be iterated over
    assert collected == ["x", "a", "b"]
