"""The rules of image adapters as a suite for pytest, in nine cases.

A subclass sets up a service with given answers, in `serving`; the suite knows nothing else about the adapter.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

from rxllm.pipelines import edit_image, generate_image, image_variations
from rxllm.runtime import Stream
from rxllm.testing._pytest import pytest
from rxllm.testing._script import REQUEST_ID, Served, missing
from rxllm.values import Image, ImageAdapterError, ImageRequest, ImageResponse

OPERATIONS = {"generate", "edit", "variation"}

PNG = Image.from_base64(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "image/png"
)
"""One pixel."""


class ImageConformance:
    """Nine cases. A subclass sets up its service in `serving`; `model` supports all operations of the adapter."""

    model: ClassVar[str] = "conformance"

    def serving(self, images: int | None) -> AbstractContextManager[Served]:
        """Return an adapter whose service answers each call with up to `images` copies of `PNG`, and no more than `n`.

        For None the service refuses each call, as with HTTP status 400, and gives the request id `REQUEST_ID`.
        """
        missing(self, "serving")

    def test_its_operations_are_legal(self) -> None:
        with self.serving(1) as served:
            assert served.adapter.operations
            assert set(served.adapter.operations) <= OPERATIONS

    def test_an_unknown_operation_is_refused_before_any_io(self) -> None:
        with self.serving(1) as served:
            unknown: Any = next(iter(sorted(OPERATIONS - set(served.adapter.operations))), "animation")
            request = ImageRequest(unknown, prompt="a kestrel", input_images=(PNG,))
            with pytest.raises(ImageAdapterError) as caught:
                generate_image(served.adapter, request, model=self.model).run()
            assert caught.value.reason == "unsupported_operation"
            assert caught.value.metadata["operation"] == unknown
            assert served.asked() == 0

    def test_a_refusal_keeps_the_providers_request_id(self) -> None:
        with self.serving(None) as served, pytest.raises(ImageAdapterError) as caught:
            generate_image(served.adapter, "a kestrel", model=self.model, retry=False).run()
        assert caught.value.request_id == REQUEST_ID

    def test_metadata_come_back(self) -> None:
        metadata = {"job": 7, "tags": ("a", "b")}
        with self.serving(1) as served:
            response = generate_image(served.adapter, "a kestrel", model=self.model, metadata=metadata).run()
        assert {name: response.metadata.get(name) for name in metadata} == metadata

    def test_it_generates(self) -> None:
        with self.serving(1) as served:
            self._assert_answer(served, "generate", generate_image(served.adapter, "a kestrel", model=self.model))

    def test_it_edits(self) -> None:
        with self.serving(1) as served:
            self._assert_answer(served, "edit", edit_image(served.adapter, [PNG, PNG], "more blue", model=self.model))

    def test_it_varies(self) -> None:
        with self.serving(1) as served:
            self._assert_answer(served, "variation", image_variations(served.adapter, PNG, model=self.model))

    def test_usage_counts_the_images(self) -> None:
        with self.serving(1) as served:
            assert generate_image(served.adapter, "a kestrel", model=self.model).run().usage.images >= 1

    def test_four_are_one_to_four(self) -> None:
        with self.serving(4) as served:
            response = generate_image(served.adapter, "a kestrel", model=self.model, n=4).run()
        assert 1 <= len(response.images) <= 4

    def _assert_answer(self, served: Served, operation: str, call: Stream[ImageResponse]) -> None:
        """Assert that `call` returns one image, or is refused if the adapter does not support `operation`.

        Nothing may be sent before the call is subscribed to.
        """
        assert served.asked() == 0
        if operation in served.adapter.operations:
            (response,) = list(call)
            assert [image.to_binary() for image in response.images] == [PNG.to_binary()]
            assert served.asked() == 1
        else:
            with pytest.raises(ImageAdapterError):
                call.run()
            assert served.asked() == 0
