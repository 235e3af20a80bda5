"""The rules of an image request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rxllm import validate
from rxllm.values import Image, ImageRequest, ValidationError, image_request

IMAGE = Image.from_binary(b"x", "image/png")
GENERATE = image_request("a kestrel")
EDIT = ImageRequest("edit", prompt="more blue", input_images=(IMAGE,))
VARIATION = ImageRequest("variation", input_images=(IMAGE,))


@pytest.mark.parametrize(
    "asked",
    [
        GENERATE,
        EDIT,
        VARIATION,
        replace(GENERATE, size=(1024, 1536), quality="hd", style="vivid", background="transparent", n=10),
        replace(GENERATE, size="auto", response_format="url"),
        replace(EDIT, input_images=(IMAGE,) * 16, mask=IMAGE),
        replace(EDIT, input_images=(Image.from_url("https://x/a"), Image.from_file("a.png"))),
    ],
)
def test_what_can_be_asked(asked: ImageRequest) -> None:
    validate.image_request(asked)


FAULTS: list[tuple[ImageRequest, dict[str, Any], tuple[Any, ...], str]] = [
    (GENERATE, {"operation": "animate"}, ("operation",), "unknown"),
    (GENERATE, {"n": 0}, ("n",), "must_be_positive"),
    (GENERATE, {"n": None}, ("n",), "wrong_type"),
    (GENERATE, {"n": "2"}, ("n",), "wrong_type"),
    (GENERATE, {"n": 1.0}, ("n",), "wrong_type"),
    (GENERATE, {"model": 4}, ("model",), "wrong_type"),
    (GENERATE, {"quality": 4}, ("quality",), "wrong_type"),
    (GENERATE, {"response_format": "png"}, ("response_format",), "unknown"),
    (GENERATE, {"style": "bold"}, ("style",), "unknown"),
    (GENERATE, {"background": "red"}, ("background",), "unknown"),
    *((GENERATE, {"size": size}, ("size",), "invalid_shape") for size in [(1,), (0, 1), (1, "2"), "", 1024, (1, 2, 3)]),
    (GENERATE, {"prompt": None}, ("prompt",), "required_for_operation"),
    (GENERATE, {"prompt": " "}, ("prompt",), "required_for_operation"),
    (GENERATE, {"input_images": (IMAGE,)}, ("input_images",), "must_be_empty"),
    (GENERATE, {"mask": IMAGE}, ("mask",), "not_allowed_for_operation"),
    (EDIT, {"prompt": ""}, ("prompt",), "required_for_operation"),
    (EDIT, {"input_images": ()}, ("input_images",), "invalid_count"),
    (EDIT, {"input_images": IMAGE}, ("input_images",), "wrong_type"),
    (EDIT, {"input_images": (IMAGE, b"x")}, ("input_images", 1), "invalid_image"),
    (EDIT, {"input_images": (Image("binary", "text"),)}, ("input_images", 0), "invalid_image"),
    (EDIT, {"mask": b"x"}, ("mask",), "invalid_image"),
    (VARIATION, {"prompt": "more"}, ("prompt",), "not_allowed_for_operation"),
    (VARIATION, {"input_images": (IMAGE, IMAGE)}, ("input_images",), "invalid_count"),
]


@pytest.mark.parametrize(("asked", "changed", "path", "what"), FAULTS)
def test_what_cannot(asked: ImageRequest, changed: dict[str, Any], path: tuple[Any, ...], what: str) -> None:
    with pytest.raises(ValidationError) as caught:
        validate.image_request(replace(asked, **changed))
    assert (caught.value.reason, caught.value.errors) == ("invalid_image_request", ((path, what),))


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        validate.image_request(replace(GENERATE, n=-1, prompt=None, size=()))  # type: ignore[arg-type]
    assert {path for path, _ in caught.value.errors} == {("n",), ("prompt",), ("size",)}


def test_what_is_no_request() -> None:
    with pytest.raises(ValidationError):
        validate.image_request("a kestrel")  # type: ignore[arg-type]
