"""The scripted image model."""

from __future__ import annotations

from typing import Any

import pytest
from reactivex.testing import TestScheduler

from rxllm.images import FakeImages
from rxllm.pipelines import edit_image, generate_image, image_variations
from rxllm.values import Call, Image, ImageAdapterError, ImageRequest, ImageResponse, ImageUsage, ValidationError

A = Image.from_binary(b"a", "image/png")
B = Image.from_url("https://example.org/b.png")


def answer(fake: FakeImages, **opts: Any) -> ImageResponse:
    return generate_image(fake, "a kestrel", retry=False, **opts).run()


def test_one_turn_answers_every_call() -> None:
    fake = FakeImages([A, B])
    assert [answer(fake).images for _ in range(2)] == [(A, B)] * 2
    assert repr(fake) == "FakeImages(1 turns, 2 requests)"


@pytest.mark.parametrize("fake", [FakeImages(A, B), FakeImages(scripts=[[A], [B]])], ids=["arguments", "scripts"])
def test_several_turns_are_used_up(fake: FakeImages) -> None:
    assert [answer(fake).images for _ in range(2)] == [(A,), (B,)]
    with pytest.raises(ImageAdapterError) as caught:
        answer(fake)
    assert (caught.value.reason, caught.value.metadata) == ("unknown", {"cause": "no_scripted_image"})
    assert len(fake.requests) == 3


def test_a_function_of_the_request() -> None:
    fake = FakeImages(lambda request: [A] * request.n)
    assert len(answer(fake, n=3).images) == 3


@pytest.mark.parametrize(
    ("script", "usage"),
    [
        ([A, B], ImageUsage(images=2)),
        ([A, ImageUsage(images=1, input_tokens=7)], ImageUsage(images=1, input_tokens=7)),
        ([A, ("usage", {"images": 1, "total_cost": 0.04})], ImageUsage(images=1, total_cost=0.04)),
        ([], ImageUsage()),
    ],
)
def test_usage_is_as_scripted_or_counted(script: list[Any], usage: ImageUsage) -> None:
    assert answer(FakeImages(script=script)).usage == usage


def test_a_whole_response() -> None:
    made = ImageResponse((A,), "id", "m", ImageUsage(1), {"x": 1}, "the provider's")
    assert answer(FakeImages(made), metadata={"y": 2}) == ImageResponse(
        (A,), "id", "m", ImageUsage(1), {"x": 1, "y": 2}, "the provider's"
    )


def test_the_model_and_the_metadata_come_back() -> None:
    response = answer(FakeImages(A), model="m", metadata={"job": 1})
    assert (response.model, response.metadata) == ("m", {"job": 1})


@pytest.mark.parametrize("reason", sorted(ImageAdapterError.REASONS))
def test_errors_by_name(reason: str) -> None:
    with pytest.raises(ImageAdapterError) as caught:
        answer(FakeImages(("error", reason)))
    assert caught.value.reason == reason


def test_any_exception_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        answer(FakeImages(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        answer(FakeImages(lambda request: 1 // 0))  # type: ignore[arg-type,return-value]


def test_refused_operations_are_recorded_and_use_up_nothing() -> None:
    fake = FakeImages(A, B, operations=["edit"])
    with pytest.raises(ImageAdapterError) as caught:
        answer(fake, model="m")
    assert caught.value.reason == "unsupported_operation"
    assert caught.value.metadata == {"operation": "generate", "model": "m"}
    with pytest.raises(ImageAdapterError):
        image_variations(fake, A).run()
    assert edit_image(fake, A, "more").run().images == (A,)
    assert [request.operation for request in fake.requests] == ["generate", "variation", "edit"]


def test_a_delay_is_of_the_subscriptions_clock() -> None:
    scheduler = TestScheduler()
    fake = FakeImages(script=[("delay", 30), A, ("delay", 20)])
    source = fake.generate(ImageRequest(prompt="a kestrel"), Call())
    seen = scheduler.start(lambda: source).messages
    assert [(each.time, each.value.kind) for each in seen] == [(250.0, "N"), (250.0, "C")]


def test_dispose_ends_a_delay() -> None:
    scheduler = TestScheduler()
    source = FakeImages(script=[("delay", 30), A]).generate(ImageRequest(prompt="a kestrel"), Call())
    assert scheduler.start(lambda: source, disposed=220.0).messages == []


@pytest.mark.parametrize(
    "given",
    [
        ("image",),
        (b"x",),
        ([A, "b"],),
        (("usage", {"pictures": 1}),),
        (("delay", "long"),),
        (("error", "nope"),),
        (("text", "x"),),
        (3,),
    ],
)
def test_a_script_that_means_nothing(given: Any) -> None:
    with pytest.raises(ValidationError, match="not a valid script item"):
        FakeImages(*given)


def test_turns_come_one_way() -> None:
    with pytest.raises(ValidationError, match="in exactly one way"):
        FakeImages()
    with pytest.raises(ValidationError, match="in exactly one way"):
        FakeImages(A, script=[B])
