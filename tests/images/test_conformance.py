"""The image adapters of the project keep what all image adapters keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rxllm.images import FakeImages, GeminiImages, OpenAIImages
from rxllm.testing import PNG, REQUEST_ID, ImageConformance, Served
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import ImageAdapterError, ImageRequest
from tests.images.answers import gemini_images, openai_images

pytestmark = pytest.mark.sockets


def refused(body: Any) -> Reply:
    return Reply.of_json(body, 400, x_request_id=REQUEST_ID)


class TestFakeImages(ImageConformance):
    @contextmanager
    def serving(self, images: int | None) -> Iterator[Served]:
        played: list[ImageRequest] = []

        def turn(request: ImageRequest) -> Any:
            played.append(request)
            refusal = ImageAdapterError("invalid_request", request_id=REQUEST_ID)
            return refusal if images is None else [PNG] * images

        yield Served(FakeImages(turn), lambda: len(played))


class TestOpenAIImages(ImageConformance):
    @contextmanager
    def serving(self, images: int | None) -> Iterator[Served]:
        said = refused({"error": {"message": "no"}}) if images is None else Reply.of_json(openai_images(images))
        with Loopback(said) as server:
            yield Served(OpenAIImages(base_url=server.url), lambda: len(server.requests))


class TestGeminiImages(ImageConformance):
    @contextmanager
    def serving(self, images: int | None) -> Iterator[Served]:
        said = refused({"error": {"message": "no"}}) if images is None else Reply.of_json(gemini_images(images))
        with Loopback(said) as server:
            yield Served(GeminiImages(base_url=server.url), lambda: len(server.requests))
