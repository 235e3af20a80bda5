"""OpenAI's images: what is sent, beside what OpenAI's own SDK sends, and what is read."""

from __future__ import annotations

from typing import Any

import msgspec
import openai
import pytest
from openai.types.image_generate_params import ImageGenerateParamsNonStreaming
from openai.types.images_response import ImagesResponse
from pydantic import ConfigDict, TypeAdapter

from rxllm.images import OpenAIImages
from rxllm.pipelines import edit_image, generate_image, image_variations
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
    ValidationError,
    image_request,
)
from tests.images.answers import image_reply, openai_images, parts_of

pytestmark = pytest.mark.judges

MASK = Image.from_binary(b"mask", "image/png")
WEBP = Image.from_binary(b"webp", "image/webp")


class Strict(ImageGenerateParamsNonStreaming):
    """Nothing but what the SDK knows."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _no_key_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def body(request: ImageRequest) -> dict[str, Any]:
    built = OpenAIImages(api_key="k").build(request, Call())
    assert (built.method, built.headers["authorization"]) == ("POST", "Bearer k")
    return msgspec.json.decode(built.content)


def answered(said: Any, request: ImageRequest | None = None, **opts: Any) -> ImageResponse:
    with Loopback(said if isinstance(said, Reply) else Reply.of_json(said, x_request_id="req-1")) as server:
        adapter = OpenAIImages(base_url=server.url)
        return generate_image(adapter, request or "a kestrel", **{"model": "gpt-image-2", "retry": False, **opts}).run()


# What is sent


def test_the_least_request() -> None:
    built = OpenAIImages(api_key="k").build(image_request("a kestrel", model="gpt-image-2"), Call())
    assert str(built.url) == "https://api.openai.com/v1/images/generations"
    assert msgspec.json.decode(built.content) == {"model": "gpt-image-2", "prompt": "a kestrel"}


ALL = {
    "prompt": "a kestrel",
    "n": 2,
    "size": (1024, 1536),
    "quality": "hd",
    "style": "vivid",
    "background": "transparent",
    "options": {"output_format": "webp", "user": "u"},
}


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("dall-e-2", {"response_format"}),
        ("dall-e-3", {"quality", "style", "response_format"}),
        ("gpt-image-1", {"quality", "background"}),
        ("gpt-image-1-mini", {"quality", "background"}),
        ("gpt-image-2.5-flare-2026-09-08", {"quality", "background"}),
        ("chatgpt-image-latest", {"quality", "background"}),
        ("somebody-elses", {"quality", "style", "background", "response_format"}),
    ],
)
def test_each_family_is_told_what_it_knows(model: str, known: set[str]) -> None:
    said = body(ImageRequest(model=model, **ALL))  # type: ignore[arg-type]
    assert said.keys() == {"model", "prompt", "n", "size", "output_format", "user"} | known
    assert (said["size"], said["n"], said["output_format"]) == ("1024x1536", 2, "webp")
    assert said.get("response_format", "b64_json") == "b64_json"
    TypeAdapter(Strict).validate_python(said)


@pytest.mark.parametrize(("form", "wire"), [("binary", "b64_json"), ("base64", "b64_json"), ("url", "url")])
def test_forms(form: Any, wire: str) -> None:
    assert body(image_request("a kestrel", model="dall-e-3", response_format=form))["response_format"] == wire


@pytest.mark.parametrize(("size", "wire"), [((256, 512), "256x512"), ("auto", "auto"), ("2048x1152", "2048x1152")])
def test_sizes(size: Any, wire: str) -> None:
    assert body(image_request("a kestrel", model="gpt-image-2", size=size))["size"] == wire


def test_options_are_merged_over_the_body_and_none_takes_out() -> None:
    said = body(image_request("a kestrel", model="m", n=2, options={"n": 3, "response_format": None}))
    assert said == {"model": "m", "prompt": "a kestrel", "n": 3}


def form(asked: ImageRequest) -> tuple[str, list[Any]]:
    with Loopback(Reply.of_json(openai_images())) as server:
        generate_image(OpenAIImages(base_url=server.url), asked).run()
        (request,) = server.requests
    return request.path, parts_of(request)


def test_an_edit_sends_all_images_and_the_mask_as_the_sdk_does() -> None:
    """The same fields, files and types; files are called after their place."""
    path, parts = form(
        ImageRequest("edit", "gpt-image-2", "more blue", 2, quality="high", input_images=(PNG, WEBP, PNG), mask=MASK)
    )
    files = [("input_images_0.png", PNG), ("input_images_1.webp", WEBP), ("input_images_2.png", PNG)]
    named: Any = [(name, image.to_binary(), image.mime_type) for name, image in files]
    with Loopback(Reply.of_json(openai_images())) as server:
        sdk = openai.OpenAI(base_url=server.url, api_key="k")
        sdk.images.edit(
            model="gpt-image-2",
            prompt="more blue",
            n=2,
            quality="high",
            image=named,
            mask=("mask.png", b"mask", "image/png"),
        )
        sdk.close()
        (theirs,) = server.requests
    assert path == theirs.path == "/images/edits"
    assert sorted(map(repr, parts)) == sorted(map(repr, parts_of(theirs)))
    assert [part.name for part in parts if part.filename] == ["image[]", "image[]", "image[]", "mask"]


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the SDK says so of variations
def test_one_image_and_a_variation_as_the_sdk_sends_them() -> None:
    path, parts = form(ImageRequest("variation", "dall-e-2", n=2, size=(256, 256), input_images=(PNG,)))
    with Loopback(Reply.of_json(openai_images())) as server:
        sdk = openai.OpenAI(base_url=server.url, api_key="k")
        sdk.images.create_variation(
            model="dall-e-2",
            n=2,
            size="256x256",
            response_format="b64_json",
            image=("input_images_0.png", PNG.to_binary(), "image/png"),
        )
        sdk.close()
        (theirs,) = server.requests
    assert path == theirs.path == "/images/variations"
    assert sorted(map(repr, parts)) == sorted(map(repr, parts_of(theirs)))


def test_options_of_a_form_are_texts() -> None:
    options = {"input_fidelity": "high", "output_compression": 80, "stream": False}
    _, parts = form(ImageRequest("edit", "gpt-image-2", "more", input_images=(PNG,), options=options))
    said = {part.name: part.data for part in parts if not part.filename}
    assert (said["input_fidelity"], said["output_compression"], said["stream"]) == (b"high", b"80", b"false")


@pytest.mark.parametrize(
    ("asked", "path", "what"),
    [
        (ImageRequest("edit", input_images=(PNG, Image("binary", b"x"))), ("input_images", 1), "missing_mime_type"),
        (ImageRequest("edit", input_images=(PNG,), mask=Image.from_file("m")), ("mask",), "missing_mime_type"),
        (ImageRequest("edit", input_images=(Image.from_base64("!", "image/png"),)), ("source",), "invalid_base64"),
    ],
)
def test_inputs_that_cannot_be_files(asked: ImageRequest, path: Any, what: str) -> None:
    with Loopback() as server, pytest.raises(ValidationError) as caught:
        generate_image(OpenAIImages(base_url=server.url), asked, model="m").run()
    assert caught.value.errors == ((path, what),)
    assert server.requests == []


# What is refused


@pytest.mark.parametrize(
    ("model", "operation"), [("dall-e-3", "edit"), ("dall-e-3", "variation"), ("gpt-image-1", "variation")]
)
def test_what_a_model_cannot_do_is_refused_before_a_key_is_looked_for(model: str, operation: Any) -> None:
    asked = ImageRequest(operation, model, "x", input_images=(Image.from_url("http://127.0.0.1:1/never"),))
    with pytest.raises(ImageAdapterError) as caught:
        generate_image(OpenAIImages(), asked).run()
    assert caught.value.reason == "unsupported_operation"
    assert caught.value.metadata == {"operation": operation, "model": model}


def test_urls_from_models_that_give_none() -> None:
    with pytest.raises(ImageAdapterError) as caught:
        generate_image(OpenAIImages(), "x", model="gpt-image-2", response_format="url").run()
    assert caught.value.reason == "invalid_request"


@pytest.mark.parametrize(("model", "reason"), [(None, "missing_model"), ("gpt-image-2", "missing_key")])
def test_a_model_and_a_key_are_needed(model: str | None, reason: str) -> None:
    with pytest.raises(EngineError) as caught:
        generate_image(OpenAIImages(), ImageRequest(model=model, prompt="x")).run()
    assert caught.value.reason == reason


def test_azures_header_replaces_every_other_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    azure = OpenAIImages(base_url="https://name.openai.azure.com/openai/v1", headers={"api-key": "k"})
    built = azure.build(ImageRequest("generate", "gpt-image-1", "a dot"), Call())
    assert built.headers["api-key"] == "k"
    assert "authorization" not in built.headers


# What is read


def test_all_of_an_answer() -> None:
    """It is one that OpenAI's own types accept."""
    usage = {
        "input_tokens": 7,
        "output_tokens": 9,
        "total_tokens": 16,
        "input_tokens_details": {"text_tokens": 7, "image_tokens": 0},
    }
    said = openai_images(2, usage=usage, size="1024x1536", quality="high", output_format="webp")
    said["data"][1]["revised_prompt"] = "a better kestrel"
    ImagesResponse.model_validate(said, strict=True)
    response = answered(said, metadata={"job": 1})
    first = Image("binary", PNG.to_binary(), "image/webp", 1024, 1536, "a kestrel")
    assert response == ImageResponse(
        (first, Image("binary", PNG.to_binary(), "image/webp", 1024, 1536, "a kestrel", "a better kestrel")),
        model="gpt-image-2",
        usage=ImageUsage(2, "1024x1536", "high", 7, 9),
        metadata={"request_id": "req-1", "usage_details": usage, "job": 1},
        request_id=response.request_id,
    )


def test_the_callers_metadata_are_not_overwritten() -> None:
    assert answered(openai_images(), metadata={"request_id": "mine"}).metadata == {"request_id": "mine"}


def test_base64_as_it_came() -> None:
    (image,) = answered(openai_images(), response_format="base64").images
    assert (image.source, image.data, image.mime_type) == ("base64", PNG.data, "image/png")


def test_urls_as_they_came() -> None:
    said = {"created": 1, "data": [{"url": "https://x/a.png", "revised_prompt": "r"}]}
    (image,) = answered(said, model="dall-e-3", response_format="url").images
    assert image == Image("url", "https://x/a.png", prompt="a kestrel", revised_prompt="r")


def test_a_url_where_bytes_were_asked_for_is_fetched() -> None:
    """Some compatible servers know URLs alone; the key is not for the picture's host."""
    with Loopback(image_reply(b"JPEG", "image/jpeg")) as pictures:
        said = Reply.of_json({"created": 1, "data": [{"url": f"{pictures.url}/a.jpg?sig=1"}]})
        with Loopback(said) as server:
            adapter = OpenAIImages(base_url=server.url, api_key="sk-secret", headers={"x-mine": "secret"})
            (image,) = generate_image(adapter, "a kestrel", model="other").run().images
        assert (image.source, image.data, image.mime_type) == ("binary", b"JPEG", "image/jpeg")
        (fetched,) = pictures.requests
        assert fetched.path == "/a.jpg?sig=1"
        assert fetched.headers.keys() == {"host", "accept"}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"created": 1, "data": []}, "content_filter"),
        ({"created": 1, "data": None}, "content_filter"),
        ({"created": 1}, "malformed_response"),
        ({"created": 1, "data": [{}]}, "malformed_response"),
        ({"created": 1, "data": "x"}, "malformed_response"),
        ([], "malformed_response"),
        (Reply(b"<html>"), "malformed_response"),
        (Reply(b"\xff"), "malformed_response"),
        (Reply(b""), "malformed_response"),
    ],
)
def test_answers_without_images(said: Any, reason: str) -> None:
    with pytest.raises(ImageAdapterError) as caught:
        answered(said)
    assert (caught.value.reason, caught.value.provider) == (reason, "openai")
    assert caught.value.request_id == (None if isinstance(said, Reply) else "req-1")


def test_an_image_that_is_no_base64() -> None:
    with pytest.raises(ImageAdapterError) as caught:
        answered({"created": 1, "data": [{"b64_json": "!"}]})
    assert caught.value.reason == "malformed_response"


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (400, {"code": "content_policy_violation"}, "content_filter"),
        (400, {"code": "moderation_blocked", "type": "image_generation_user_error"}, "content_filter"),
        (400, {"code": "invalid_image_format"}, "invalid_request"),
        (401, {"code": "invalid_api_key"}, "authentication_failed"),
        (429, {"code": "rate_limit_exceeded"}, "rate_limited"),
        (500, {}, "provider_unavailable"),
    ],
)
def test_refusals(status: int, error: dict[str, Any], reason: str) -> None:
    said = Reply.of_json({"error": {"message": "No.", **error}}, status, x_request_id="req-1", retry_after="3")
    with pytest.raises(ImageAdapterError) as caught:
        answered(said)
    found = caught.value
    assert (found.reason, found.status, found.request_id) == (reason, status, "req-1")
    assert found.message == ("No." if status == 400 else "No. (openai, model gpt-image-2)")
    assert (found.provider, found.retry_after, found.code) == ("openai", 3.0, error.get("code"))


def test_a_refusal_does_not_repeat_the_key() -> None:
    key = "sk-sentinel-0123456789"
    with Loopback(Reply.of_json({"error": {"message": f"bad key {key}"}}, 401)) as server:
        with pytest.raises(ImageAdapterError) as caught:
            generate_image(OpenAIImages(base_url=server.url), "x", model="m", api_key=key).run()
        assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    assert caught.value.message == "bad key [key] (openai, model m)"


def test_variations_and_edits_are_read_alike() -> None:
    with Loopback(Reply.of_json(openai_images())) as server:
        adapter = OpenAIImages(base_url=server.url)
        assert len(edit_image(adapter, PNG, "more", model="m").run().images) == 1
        assert len(image_variations(adapter, PNG, model="m").run().images) == 1
