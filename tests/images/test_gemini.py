"""Gemini's images: what is sent, by the types of Google's own SDK, and what is read."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from google.genai import types

from rxllm.adapters.gemini.images import image_config
from rxllm.images import GeminiImages
from rxllm.pipelines import edit_image, generate_image
from rxllm.testing import PNG
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import (
    Call,
    EngineError,
    Image,
    ImageAdapterError,
    ImageRequest,
    ImageResponse,
    ImageUsage,
    image_request,
)
from tests.images.answers import gemini_images

pytestmark = pytest.mark.judges

MODEL = "gemini-3-pro-image"


@pytest.fixture(autouse=True)
def _no_key_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def body(request: ImageRequest) -> dict[str, Any]:
    built = GeminiImages(api_key="k").build(request, Call())
    assert built.headers["x-goog-api-key"] == "k"
    said = msgspec.json.decode(built.content)
    for content in said["contents"]:
        types.Content.model_validate(content)
    types.GenerationConfig.model_validate(
        {name: held for name, held in said["generationConfig"].items() if name != "imageConfig"}
    )
    types.ImageConfig.model_validate(said["generationConfig"].get("imageConfig", {}))
    return said


def answered(said: Any, **opts: Any) -> ImageResponse:
    with Loopback(said if isinstance(said, Reply) else Reply.of_json(said)) as server:
        return generate_image(GeminiImages(base_url=server.url), "a kestrel", model=MODEL, retry=False, **opts).run()


# What is sent


def test_the_least_request() -> None:
    built = GeminiImages(api_key="k").build(image_request("a kestrel", model=MODEL), Call())
    assert str(built.url) == f"https://generativelanguage.googleapis.com/v1beta/models/{MODEL}:generateContent"
    assert msgspec.json.decode(built.content) == {
        "contents": [{"role": "user", "parts": [{"text": "a kestrel"}]}],
        "generationConfig": {"responseModalities": ["TEXT", "IMAGE"]},
    }


def test_an_edit_sends_all_images_after_the_prompt() -> None:
    inputs = (PNG, Image.from_binary(b"webp", "image/webp"), Image.from_url("https://x/a.png"))
    said = body(ImageRequest("edit", MODEL, "more blue", input_images=inputs))
    assert said["contents"][0]["parts"] == [
        {"text": "more blue"},
        {"inlineData": {"mimeType": "image/png", "data": PNG.data}},
        {"inlineData": {"mimeType": "image/webp", "data": "d2VicA=="}},
        {"fileData": {"fileUri": "https://x/a.png", "mimeType": "image/png"}},
    ]


def test_number_and_shape() -> None:
    config = body(image_request("a kestrel", model=MODEL, n=3, size=(1920, 1080)))["generationConfig"]
    assert (config["candidateCount"], config["imageConfig"]) == (3, {"aspectRatio": "16:9"})


def test_options_are_merged_into_the_body() -> None:
    options = {"generationConfig": {"imageConfig": {"imageSize": "2K"}, "temperature": 0.5}, "safetySettings": [{}]}
    said = body(image_request("a kestrel", model=MODEL, size="16:9", options=options))
    assert said["generationConfig"]["imageConfig"] == {"aspectRatio": "16:9", "imageSize": "2K"}
    assert said["generationConfig"]["responseModalities"] == ["TEXT", "IMAGE"]
    assert (said["generationConfig"]["temperature"], said["safetySettings"]) == (0.5, [{}])


@pytest.mark.parametrize(
    ("size", "config"),
    [
        (None, {}),
        ("auto", {}),
        ((512, 512), {"aspectRatio": "1:1"}),
        ((1024, 1536), {"aspectRatio": "2:3"}),
        ((1000, 1040), {"aspectRatio": "1:1"}),
        ((1344, 768), {"aspectRatio": "16:9"}),
        ("1024x1024", {"aspectRatio": "1:1"}),
        ("4:5", {"aspectRatio": "4:5"}),
        ("4K", {"imageSize": "4K"}),
    ],
)
def test_sizes(size: Any, config: dict[str, str]) -> None:
    assert image_config(size) == config


@pytest.mark.parametrize("size", [(100, 1000), (1000, 1100), (1, 0), (0, 0), "large", "0x0", "1x"])
def test_sizes_of_no_known_shape(size: Any) -> None:
    with pytest.raises(ImageAdapterError) as caught:
        GeminiImages(api_key="k").build(image_request("a kestrel", model=MODEL, size=size), Call())
    assert caught.value.reason == "invalid_request"


@pytest.mark.parametrize("width", range(400, 2400, 50))
def test_a_shape_is_within_five_in_a_hundred_or_refused(width: int) -> None:
    try:
        wide, _, high = image_config((width, 1000))["aspectRatio"].partition(":")
    except ImageAdapterError:
        return
    assert math.isclose(width / 1000 / (int(wide) / int(high)), 1, abs_tol=0.05)


# What is refused


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (ImageRequest("variation", MODEL, input_images=(PNG,)), "unsupported_operation"),
        (ImageRequest("edit", MODEL, "x", input_images=(PNG,), mask=PNG), "unsupported_feature"),
        (ImageRequest("generate", MODEL, "x", response_format="url"), "invalid_request"),
        (ImageRequest("generate", MODEL, "x", size="large"), "invalid_request"),
    ],
)
def test_what_it_cannot_do_is_refused_before_a_key_is_looked_for(asked: ImageRequest, reason: str) -> None:
    with pytest.raises(ImageAdapterError) as caught:
        generate_image(GeminiImages(), asked).run()
    assert caught.value.reason == reason


@pytest.mark.parametrize(("model", "reason"), [(None, "missing_model"), (MODEL, "missing_key")])
def test_a_model_and_a_key_are_needed(model: str | None, reason: str) -> None:
    with pytest.raises(EngineError) as caught:
        generate_image(GeminiImages(), ImageRequest(model=model, prompt="x")).run()
    assert caught.value.reason == reason


# What is read


def test_all_of_an_answer() -> None:
    counted = {"promptTokenCount": 5, "candidatesTokenCount": 1290, "totalTokenCount": 1295}
    said = gemini_images(2, usageMetadata=counted, modelVersion="v")
    said["candidates"][0]["content"]["parts"].insert(0, {"text": "Here."})
    response = answered(said, metadata={"job": 1})
    made = Image("binary", PNG.to_binary(), "image/png", prompt="a kestrel")
    assert response == ImageResponse(
        (made, made),
        "r1",
        "v",
        ImageUsage(2, input_tokens=5, output_tokens=1290),
        {"text": "Here.", "usage_details": counted, "job": 1},
        response.request_id,
    )
    types.GenerateContentResponse.model_validate(said)


def test_base64_as_it_came() -> None:
    (image,) = answered(gemini_images(), response_format="base64").images
    assert (image.source, image.data) == ("base64", PNG.data)


def test_a_draft_in_the_thoughts_is_no_image() -> None:
    said = gemini_images(2)
    said["candidates"][0]["content"]["parts"][0]["thought"] = True
    assert len(answered(said).images) == 1


@pytest.mark.parametrize(
    ("said", "reason", "shown"),
    [
        ({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, "content_filter", "PROHIBITED_CONTENT"),
        ({"candidates": [{"finishReason": "IMAGE_SAFETY"}]}, "content_filter", "IMAGE_SAFETY"),
        (
            {"candidates": [{"finishReason": "STOP", "content": {"parts": [{"text": "I cannot draw."}]}}]},
            "unknown",
            "I cannot draw.",
        ),
        ({"candidates": [{"finishReason": "NO_IMAGE"}]}, "unknown", "NO_IMAGE"),
        ({}, "unknown", "no reason"),
        ([], "malformed_response", "cannot be read"),
        (Reply(b"<html>"), "malformed_response", "cannot be read"),
    ],
)
def test_answers_without_images(said: Any, reason: str, shown: str) -> None:
    with pytest.raises(ImageAdapterError, match=shown) as caught:
        answered(said)
    assert (caught.value.reason, caught.value.provider) == (reason, "google")


@pytest.mark.parametrize(
    ("status", "name", "reason"),
    [
        (400, "INVALID_ARGUMENT", "invalid_request"),
        (403, "PERMISSION_DENIED", "authentication_failed"),
        (429, "RESOURCE_EXHAUSTED", "rate_limited"),
        (503, "UNAVAILABLE", "provider_unavailable"),
    ],
)
def test_refusals(status: int, name: str, reason: str) -> None:
    with pytest.raises(ImageAdapterError) as caught:
        answered(Reply.of_json({"error": {"code": status, "message": "No.", "status": name}}, status))
    assert (caught.value.reason, caught.value.code) == (reason, name)
    assert caught.value.message == ("No." if status == 400 else f"No. (google, model {MODEL})")


def test_an_edit_is_read_like_any_other() -> None:
    with Loopback(Reply.of_json(gemini_images())) as server:
        adapter = GeminiImages(base_url=server.url, api_key="k")
        assert len(edit_image(adapter, [PNG, PNG], "more", model=MODEL).run().images) == 1
        assert server.requests[0].path == f"/models/{MODEL}:generateContent"
