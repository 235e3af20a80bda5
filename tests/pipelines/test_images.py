"""Images through the facade: what is asked, what is refused and when, and how often it is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import reactivex
from msgspec.structs import replace
from reactivex.testing import TestScheduler

from rxllm.adapters import Fake, FakeImages
from rxllm.engine import Engine
from rxllm.pipelines import edit_image, generate_image, image_variations
from rxllm.runtime import RetryPolicy, Stream
from rxllm.telemetry import CallDetails, ImagesFinished, ImagesStarted, RetryAttempt
from rxllm.values import (
    Call,
    EngineError,
    Image,
    ImageAdapterError,
    ImageRequest,
    ImageResponse,
    ImageUsage,
    ValidationError,
)

IMAGE = Image.from_binary(b"\x89PNG", "image/png")
OTHER = Image.from_binary(b"other", "image/png")
MASK = Image.from_binary(b"mask", "image/png")

CALLS: dict[str, Callable[..., Stream[ImageResponse]]] = {
    "generate": lambda engine, **opts: generate_image(engine, "a kestrel", **opts),
    "edit": lambda engine, **opts: edit_image(engine, IMAGE, "make sky pink", **opts),
    "variation": lambda engine, **opts: image_variations(engine, IMAGE, **opts),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


# What is asked


def test_a_prompt_becomes_a_request() -> None:
    fake = FakeImages(IMAGE)
    response = generate_image(Engine(image_adapter=fake), "a kestrel", n=2, size=(1024, 1024), style="vivid").run()
    assert response.images == (IMAGE,)
    assert fake.requests == [ImageRequest(prompt="a kestrel", n=2, size=(1024, 1024), style="vivid")]


def test_all_images_of_an_edit_are_sent_and_the_mask() -> None:
    """None of several images becomes the mask."""
    fake = FakeImages(IMAGE)
    edit_image(fake, IMAGE, "make sky pink").run()
    edit_image(fake, [IMAGE, OTHER], "make sky pink").run()
    edit_image(fake, [IMAGE, OTHER], "make sky pink", mask=MASK, quality="high").run()
    asked = ImageRequest("edit", prompt="make sky pink", input_images=(IMAGE,))
    both = ImageRequest("edit", prompt="make sky pink", input_images=(IMAGE, OTHER))
    masked = ImageRequest("edit", prompt="make sky pink", input_images=(IMAGE, OTHER), mask=MASK, quality="high")
    assert fake.requests == [asked, both, masked]


def test_a_variation_has_an_image_and_no_prompt() -> None:
    fake = FakeImages(OTHER)
    assert image_variations(Engine(image_adapter=fake), IMAGE, n=3).run().images == (OTHER,)
    assert fake.requests == [ImageRequest("variation", n=3, input_images=(IMAGE,))]


def test_a_request_is_sent_as_it_is() -> None:
    """Also one that the validator would refuse, and one of another operation."""
    fake = FakeImages(IMAGE)
    for asked in (ImageRequest(prompt=""), ImageRequest("edit", prompt="more blue", n=2, metadata={"job": 1})):
        generate_image(fake, asked).run()
        assert fake.requests[-1] == asked


def test_options_win_over_the_request_and_the_request_over_the_engine() -> None:
    fake = FakeImages(IMAGE)
    engine = Engine(image_adapter=fake, model="of the engine")
    asked = ImageRequest(prompt="a kestrel", n=2, options={"a": 1, "b": 1}, metadata={"x": 1})
    generate_image(engine, asked).run()
    generate_image(engine, asked, model="of the call", n=3, options={"b": 2}, metadata={"y": 2}).run()
    assert [each.model for each in fake.requests] == ["of the engine", "of the call"]
    assert (fake.requests[1].n, fake.requests[1].options) == (3, {"a": 1, "b": 2})
    assert fake.requests[1].metadata == {"x": 1, "y": 2}


def test_the_chat_models_name_and_params_are_not_for_images() -> None:
    fake = FakeImages(IMAGE)
    engine = Engine(
        Fake("Hi"), model="chatty", params={"temperature": 0.5, "options": {"top_k": 3}}, image_adapter=fake
    )
    generate_image(engine, "a kestrel").run()
    assert fake.requests == [ImageRequest(prompt="a kestrel")]


def test_the_adapter_is_told_of_the_call() -> None:
    calls: list[Call] = []

    class Listening(FakeImages):
        def generate(self, request: ImageRequest, call: Call) -> Stream[ImageResponse]:
            calls.append(call)
            return super().generate(request, call)

    engine = Engine(image_adapter=Listening(IMAGE), observers=(lambda told: None,))
    generate_image(engine, "a kestrel", request_id="mine", api_key="k", metadata={"x": 1}).run()
    generate_image(engine, "a kestrel").run()
    generate_image(engine, "a kestrel").run()
    assert (calls[0].request_id, calls[0].api_key, calls[0].metadata) == ("mine", "k", {"x": 1})
    assert len(calls[0].observers) == 1
    assert len(calls[1].request_id) == 22
    assert calls[1].request_id != calls[2].request_id
    assert "'k'" not in repr(calls[0])


@every_call
def test_the_response_has_the_calls_request_id(call: Callable[..., Any]) -> None:
    calls: list[Call] = []

    class Listening(FakeImages):
        def generate(self, request: ImageRequest, call: Call) -> Stream[ImageResponse]:
            calls.append(call)
            return super().generate(request, call)

    listening = Listening(IMAGE)
    ids = [call(listening, request_id="mine").run().request_id, call(listening).run().request_id]
    assert ids == [called.request_id for called in calls]
    assert (ids[0], len(ids[1])) == ("mine", 22)


def test_a_request_id_that_the_adapter_has_set_stays() -> None:
    fake = FakeImages(ImageResponse((IMAGE,), request_id="the provider's"))
    assert generate_image(fake, "a kestrel", request_id="mine").run().request_id == "the provider's"


# When


@every_call
def test_nothing_happens_before_it_is_subscribed_and_each_time_it_does(call: Callable[..., Any]) -> None:
    fake = FakeImages(IMAGE)
    images = call(fake)
    assert fake.requests == []
    first, second = images.run(), images.run()
    assert first.images == second.images
    assert len(fake.requests) == 2


@every_call
@pytest.mark.parametrize("engine", [Engine(), Engine(Fake("Hi")), Fake("Hi"), Engine(image_adapter=object())])
def test_no_image_adapter_is_the_streams_error(call: Callable[..., Any], engine: Any) -> None:
    images = call(engine)
    with pytest.raises(EngineError) as caught:
        images.run()
    assert caught.value.reason == "no_image_adapter"


@pytest.mark.parametrize("engine", [Engine(), Engine(Fake("Hi")), Fake("Hi")])
@pytest.mark.parametrize(
    "call",
    [
        lambda engine: generate_image(engine, None),
        lambda engine: generate_image(engine, "a kestrel", n=0),
        lambda engine: generate_image(engine, "a kestrel", sise="auto"),
        lambda engine: edit_image(engine, b"x", "make sky pink"),
        lambda engine: edit_image(engine, 3, "make sky pink", mask="a.png"),
        lambda engine: image_variations(engine, "a.png", size=1024),
    ],
)
def test_no_image_adapter_is_seen_before_any_other_fault(call: Callable[..., Any], engine: Any) -> None:
    with pytest.raises(EngineError) as caught:
        call(engine).run()
    assert caught.value.reason == "no_image_adapter"


def test_engines_by_name() -> None:
    with pytest.raises(EngineError, match="no API key for openai"):
        generate_image("openai:gpt-image-2", "a kestrel").run()
    with pytest.raises(EngineError, match="no API key for google"):
        generate_image("google:gemini-image", "a kestrel").run()
    with pytest.raises(EngineError, match="no provider"):
        generate_image("nobody:m", "a kestrel")


@pytest.fixture(autouse=True)
def _no_key_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


# What is refused at the call


@every_call
@pytest.mark.parametrize("name", ["stream", "temperature", "operation", "sise"])
def test_unknown_options(call: Callable[..., Any], name: str) -> None:
    with pytest.raises(EngineError) as caught:
        call(FakeImages(IMAGE), **{name: True})
    assert caught.value.reason == "unknown_option"


@every_call
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", ""),
        ("n", 0),
        ("n", "2"),
        ("size", (0, 1)),
        ("size", 1024),
        ("quality", 1),
        ("style", "bold"),
        ("background", "red"),
        ("response_format", "png"),
        ("response_format", {"type": "json_object"}),
        ("options", [("a", 1)]),
        ("metadata", "x"),
        ("api_key", b"x"),
        ("retry", 3),
        ("request_id", ""),
    ],
)
def test_senseless_options(call: Callable[..., Any], name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        call(FakeImages(IMAGE), **{name: value})
    assert caught.value.reason == "invalid_option"
    assert [path for path, _ in caught.value.errors] == [(name,)]


@pytest.mark.parametrize(
    "call",
    [
        lambda fake: edit_image(fake, b"x", "more"),
        lambda fake: edit_image(fake, [IMAGE, "a.png"], "more"),
        lambda fake: edit_image(fake, IMAGE, "more", mask="a.png"),
        lambda fake: image_variations(fake, "a.png"),
        lambda fake: generate_image(fake, None),
        lambda fake: generate_image(fake, IMAGE),
    ],
)
def test_what_is_no_image_and_no_prompt(call: Callable[..., Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        call(FakeImages(IMAGE))
    assert caught.value.reason == "invalid_image_request"


# Retry


@pytest.mark.parametrize("reason", ["rate_limited", "provider_unavailable", "timeout", "network_error"])
def test_what_may_pass_is_tried_again(reason: str) -> None:
    fake = FakeImages(("error", reason), ("error", reason), IMAGE)
    quick = RetryPolicy(base_delay=0, jitter=0)
    assert generate_image(Engine(image_adapter=fake, retry=quick), "a kestrel").run().images == (IMAGE,)
    assert len(fake.requests) == 3


@pytest.mark.parametrize("reason", sorted(ImageAdapterError.REASONS))
def test_every_failure_is_passed_on_as_it_came(reason: str) -> None:
    failure = ImageAdapterError(reason, provider="p", status=418, request_id="r", retry_after=0.0)
    fake = FakeImages(failure)
    with pytest.raises(ImageAdapterError) as caught:
        generate_image(fake, "a kestrel", retry=False).run()
    assert caught.value is failure
    assert len(fake.requests) == 1


def test_a_calls_retry_is_laid_over_the_engines() -> None:
    fake = FakeImages(("error", "timeout"), ("error", "timeout"), IMAGE)
    engine = Engine(image_adapter=fake, retry=RetryPolicy(base_delay=0, jitter=0))
    with pytest.raises(ImageAdapterError):
        generate_image(engine, "a kestrel", retry={"max_attempts": 2}).run()
    assert len(fake.requests) == 2


def test_the_wait_between_is_of_the_subscriptions_clock() -> None:
    fake = FakeImages(ImageAdapterError("rate_limited", retry_after=7.0), IMAGE)
    scheduler = TestScheduler()
    images = generate_image(fake, "a kestrel", retry=RetryPolicy(jitter=0))
    seen = scheduler.start(lambda: images, disposed=1000.0).messages
    assert [(each.time, each.value.kind) for each in seen] == [(207.0, "N"), (207.0, "C")]


# What observers are told


def heard(fake: FakeImages, disposed: float = 1000.0, **opts: Any) -> list[Any]:
    told: list[Any] = []

    def tell(value: Any) -> None:
        plain = {"details": CallDetails()} if hasattr(value, "details") else {}
        told.append(replace(value, id="", **plain))

    engine = Engine(
        image_adapter=fake,
        model="m",
        observers=(tell,),
        retry=RetryPolicy(jitter=0),
    )
    images = generate_image(engine, "a kestrel", n=2, request_id="r", **opts)
    TestScheduler().start(lambda: images, disposed=disposed)
    return told


STARTED = ImagesStarted("r", "FakeImages", "m", "generate", 2)


def test_a_call_is_told_with_its_retries() -> None:
    failure = ImageAdapterError("rate_limited", retry_after=7.0)
    told = heard(FakeImages([failure], [("delay", 3), IMAGE, OTHER]))
    finished = ImagesFinished("r", "FakeImages", "m", "generate", "completed", 10.0, 2, ImageUsage(images=2))
    assert told == [STARTED, RetryAttempt("r", "FakeImages", "m", 1, 7.0, failure), finished]


def test_a_failure_is_told() -> None:
    failure = ImageAdapterError("content_filter")
    told = heard(FakeImages(failure))
    assert told == [STARTED, ImagesFinished("r", "FakeImages", "m", "generate", "failed", 0.0, error=failure)]


def test_a_call_that_is_left_is_told_once() -> None:
    told = heard(FakeImages(script=[("delay", 60), IMAGE]), disposed=230.0)
    assert told == [STARTED, ImagesFinished("r", "FakeImages", "m", "generate", "cancelled", 30.0)]


def test_images_are_streams_like_any_other() -> None:
    fake = FakeImages(lambda request: Image.from_url(f"https://x/{request.prompt}"))
    prompts = reactivex.from_iterable(["a", "b"])
    made = Stream.of(prompts).flat_map(lambda prompt: generate_image(fake, prompt))
    assert [response.images[0].data for response in made] == ["https://x/a", "https://x/b"]
