"""Whatever is wrong with a refusal or with an image's answer, it is told as a typed error."""

from __future__ import annotations

import csv
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxllm import AdapterError, LLMError
from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIImages, OpenAIResponses
from rxllm.images import GeminiImages
from rxllm.serializer import from_json, to_json
from rxllm.values import Call, ImageRequest
from tests.adapters.mutated import mutant, mutants
from tests.corpus import VARIABLE
from tests.examples import examples
from tests.images.answers import gemini_images, openai_images

ADAPTERS = [OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama, OpenAIImages, GeminiImages]

_RAW = json.dumps({"error": {"message": "too long", "code": "context_length_exceeded"}})
REFUSALS = [
    {"error": {"message": "slow", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}},
    {"error": {"message": "no", "code": 400, "metadata": {"raw": _RAW, "provider_name": "x"}}, "user_id": "u"},
    {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}, "request_id": "q"},
    [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [{"retryDelay": "34.5s"}, {"reason": "X"}]}}],
    {"error": "the model is not there"},
    {"detail": [{"loc": ["body"], "msg": "missing"}], "message": {"x": 1}},
]
WAITS = [
    "",
    "7",
    "1" * 20,
    "1e999",
    "nan",
    "-5",
    "soon",
    "Wed, 21 Oct 2015 07:28:00 GMT",
    "Mon, 99 Zzz 999999 99:99:99",
]


@cache
def recorded() -> list[bytes]:
    folder = Path(os.environ.get(VARIABLE, "nowhere")) / "errors"
    if not folder.is_dir():
        pytest.skip(f"recorded errors are not at hand: set {VARIABLE} to the folder of the streams")
    rows = csv.DictReader((folder / "index.csv").read_text().splitlines())
    return [(folder / row["file"]).read_bytes() for row in rows]


def assert_told(adapter: type[OpenAIChat], status: int, headers: dict[str, str], body: bytes) -> None:
    error = adapter(api_key="k").error(status, headers, body)
    assert isinstance(error, AdapterError)
    assert error.status == status
    assert error.retry_after is None or 0 <= error.retry_after < 1e9
    assert from_json(to_json(error)) == error


headers = st.fixed_dictionaries(
    {},
    optional={
        "Retry-After": st.sampled_from(WAITS),
        "retry-after-ms": st.sampled_from(WAITS),
        "date": st.sampled_from(WAITS),
        "content-type": st.sampled_from(["text/html", "application/json"]),
    },
)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
@given(
    body=mutants([json.dumps(refusal).encode() for refusal in REFUSALS]),
    status=st.sampled_from([301, 400, 401, 429, 500, 599]),
    headers=headers,
)
def test_no_mutation_of_a_refusal_escapes(adapter: Any, body: bytes, status: int, headers: dict[str, str]) -> None:
    assert_told(adapter, status, headers, body)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
@given(data=st.data())
def test_no_mutation_of_a_recorded_refusal_escapes(adapter: Any, data: st.DataObject) -> None:
    assert_told(adapter, 400, {}, mutant(data, recorded()))


IMAGES = {
    OpenAIImages: [
        openai_images(2, usage={"input_tokens": 1, "output_tokens": 2}, size="1x1", output_format="png"),
        {"created": 1, "data": [{"url": "data:image/png;base64,iVBORw0KGgo=", "revised_prompt": "p"}]},
    ],
    GeminiImages: [
        gemini_images(2, modelVersion="m", usageMetadata={"promptTokenCount": 1, "candidatesTokenCount": 2}),
        {"promptFeedback": {"blockReason": "SAFETY"}, "candidates": [{"finishReason": "SAFETY"}]},
    ],
}


@pytest.mark.parametrize("adapter", IMAGES, ids=lambda adapter: adapter.__name__)
@given(data=st.data(), form=st.sampled_from(["base64", "binary"]))
@settings(max_examples=examples(50))
def test_no_mutation_of_an_images_answer_escapes(adapter: Any, data: st.DataObject, form: Any) -> None:
    bodies = [json.dumps(answer).encode() for answer in IMAGES[adapter]]
    body = mutant(data, bodies)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200 if request.method == "POST" else 404, content=body)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    request = ImageRequest(prompt="a cat", model="m", response_format=form)
    try:
        response = adapter(api_key="k", client=client).generate(request, Call()).run()
        text = to_json(response)  # metadata of a thousand levels may be read and yet too deep to write
    except LLMError:
        return
    assert from_json(text) == response
