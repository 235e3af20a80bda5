"""The faults of an image request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rxllm.validate._faults import Fault, each_of, whole_faults
from rxllm.values import Image, ImageRequest

_KNOWN: dict[str, tuple[str | None, ...]] = {
    "operation": ("generate", "edit", "variation"),
    "response_format": ("binary", "base64", "url"),
    "style": (None, "natural", "vivid"),
    "background": (None, "transparent", "opaque", "auto"),
}


def image_request_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, ImageRequest):
        yield (), "wrong_type"
        return
    yield from (((name,), "unknown") for name, known in _KNOWN.items() if getattr(value, name) not in known)
    texts = ((name, getattr(value, name)) for name in ("model", "prompt", "quality"))
    yield from (((name,), "wrong_type") for name, text in texts if not isinstance(text, str | None))
    if value.n is None:  # pyright: ignore[reportUnnecessaryComparison]
        yield ("n",), "wrong_type"
    yield from whole_faults("n", value.n, lambda number: number > 0, "must_be_positive")
    if not _is_size(value.size):
        yield ("size",), "invalid_shape"
    yield from each_of("input_images", value.input_images, _image_faults)
    if value.mask is not None:
        yield from ((("mask",), fault) for _, fault in _image_faults(value.mask))
    if isinstance(value.input_images, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
        yield from _operation_faults(value)


def _operation_faults(value: ImageRequest) -> Iterator[Fault]:
    count, has_prompt = len(value.input_images), isinstance(value.prompt, str) and bool(value.prompt.strip())
    if value.operation in ("generate", "edit") and not has_prompt:
        yield ("prompt",), "required_for_operation"
    if value.operation == "variation" and value.prompt:
        yield ("prompt",), "not_allowed_for_operation"
    if value.operation == "generate" and count:
        yield ("input_images",), "must_be_empty"
    if (value.operation == "edit" and not count) or (value.operation == "variation" and count != 1):
        yield ("input_images",), "invalid_count"
    if value.operation != "edit" and value.mask is not None:
        yield ("mask",), "not_allowed_for_operation"


def _image_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, Image) or isinstance(value.data, bytes) != (value.source == "binary"):
        yield (), "invalid_image"


def _is_size(value: Any) -> bool:
    match value:
        case None:
            return True
        case str():
            return bool(value)
        case (int() as width, int() as height):
            return width > 0 and height > 0
        case _:
            return False
