"""What counts as an image adapter, and where its names are found."""

from __future__ import annotations

from typing import Any

import pytest

from rxllm import adapters, images
from rxllm.values import EngineError, Image

FAKE = images.FakeImages(Image.from_url("https://example.org/a.png"))


def test_an_image_adapter_is_returned_as_it_is() -> None:
    assert images.as_image_adapter(FAKE) is FAKE
    assert isinstance(FAKE, images.ImageAdapter)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "has no image adapter; pass one"),
        (3, "3 is not an image adapter"),
        (images.OpenAIImages, "is not an image adapter"),
    ],
)
def test_anything_else_is_refused(value: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        images.as_image_adapter(value)
    assert caught.value.reason == "no_image_adapter"


@pytest.mark.parametrize("name", sorted(set(images.__all__) & set(adapters.__all__)))
def test_the_names_are_those_of_the_adapters_too(name: str) -> None:
    assert getattr(adapters, name) is getattr(images, name)
