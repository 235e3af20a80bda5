"""Every recorded body of an error, through the adapter of its API: the reason, the message and the code.

Bedrock, Cohere and the other APIs that have no adapter go through the nearest one: what they say is read all the same.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rxllm.adapters.anthropic import Anthropic
from rxllm.adapters.gemini import Gemini
from rxllm.adapters.openai_chat import OpenAIChat
from rxllm.adapters.openai_responses import OpenAIResponses
from rxllm.runtime import RetryPolicy
from rxllm.values import LLMError, Request
from tests.corpus import VARIABLE

ADAPTERS: dict[str, Any] = {
    "anthropic-complete": Anthropic,
    "anthropic-messages": Anthropic,
    "bedrock-converse": OpenAIChat,
    "bedrock-invoke": OpenAIChat,
    "cohere-v2": OpenAIChat,
    "gemini": Gemini,
    "gemini-interactions": Gemini,
    "openai-assistants": OpenAIChat,
    "openai-chat": OpenAIChat,
    "openai-completions": OpenAIChat,
    "openai-responses": OpenAIResponses,
}

# (provider, status, what the file's name is like), reason, how many bodies. The first line that fits a body counts.
TABLE: list[tuple[tuple[str, int, str], str, int]] = [
    (("anthropic", 400, "*"), "invalid_request", 23),
    (("anthropic", 401, "*"), "authentication_failed", 1),
    (("anthropic", 404, "*"), "invalid_request", 24),  # a model that is unknown, or no more
    (("azure", 422, "*"), "invalid_request", 2),
    (("bedrock", 400, "*"), "invalid_request", 4),
    (("bedrock", 403, "*"), "authentication_failed", 9),
    (("bedrock", 404, "*"), "invalid_request", 1),
    (("bedrock", 503, "*"), "provider_unavailable", 1),
    (("cohere", 404, "*"), "invalid_request", 1),
    (("deepseek", 400, "*"), "invalid_request", 8),
    (("deepseek", 401, "*"), "authentication_failed", 1),  # whose own code is invalid_request_error
    (("doubleword", 400, "*"), "invalid_request", 1),
    (("doubleword", 403, "*"), "authentication_failed", 1),
    (("doubleword", 404, "*"), "invalid_request", 1),
    (("google", 400, "*auth_rejection*"), "authentication_failed", 1),  # "API key not valid", with 400
    (("google", 400, "*gemini_1_5_flash__basic*"), "authentication_failed", 1),
    (("google", 400, "*"), "invalid_request", 5),
    (("google", 403, "*"), "authentication_failed", 1),
    (("google", 404, "*"), "invalid_request", 10),
    (("google", 429, "*"), "rate_limited", 1),
    (("google-vertex", 400, "*"), "invalid_request", 2),
    (("google-vertex", 404, "*"), "invalid_request", 1),
    (("groq", 400, "*"), "invalid_request", 7),
    (("groq", 401, "*"), "authentication_failed", 2),
    (("groq", 404, "*"), "invalid_request", 1),
    (("llamacpp", 400, "*context_overflow*"), "context_length_exceeded", 1),
    (("llamacpp", 400, "*"), "invalid_request", 3),
    (("llamacpp", 401, "*"), "authentication_failed", 1),
    (("llamacpp", 500, "*"), "provider_unavailable", 4),  # the server's own word for what it cannot do
    (("mistral", 400, "*"), "invalid_request", 2),
    (("mistral", 401, "*"), "authentication_failed", 1),
    (("openai", 400, "*"), "invalid_request", 24),
    (("openai", 401, "*"), "authentication_failed", 7),
    (("openai", 403, "*"), "authentication_failed", 1),
    (("openai", 404, "*"), "invalid_request", 8),
    (("openai-chatgpt", 401, "*"), "authentication_failed", 1),
    (("openrouter", 400, "*"), "invalid_request", 5),
    (("openrouter", 401, "*"), "authentication_failed", 1),
    (("openrouter", 403, "*x_ai_grok*"), "content_filter", 2),  # xAI behind it: "Content violates usage guidelines"
    (("openrouter", 404, "*"), "invalid_request", 17),
    (("openrouter", 429, "*"), "rate_limited", 8),
    (("venice", 404, "*"), "invalid_request", 1),
    (("xai", 400, "*"), "invalid_request", 2),
    (("xai", 404, "*"), "invalid_request", 1),
]


class Body(NamedTuple):
    name: str
    provider: str
    api: str
    status: int
    content: bytes

    @property
    def error(self) -> LLMError:
        return ADAPTERS[self.api]().error(self.status, {"content-type": "application/json"}, self.content)

    @property
    def said(self) -> dict[str, Any]:
        """What the provider said, without what it is wrapped in."""
        try:
            held = json.loads(self.content)
        except ValueError:
            return {}
        held = held[0] if isinstance(held, list) else held
        return held["error"] if isinstance(held.get("error"), dict) else held


@cache
def bodies() -> tuple[Body, ...]:
    root = os.environ.get(VARIABLE)
    folder = Path(root or "") / "errors"
    if not root or not folder.is_dir():
        pytest.skip(f"recorded errors are not at hand: set {VARIABLE} to the folder of the streams")
    rows = csv.DictReader((folder / "index.csv").read_text().splitlines())
    return tuple(
        Body(row["file"], row["provider"], row["api"], int(row["status"]), (folder / row["file"]).read_bytes())
        for row in rows
    )


def line_of(body: Body) -> int:
    fitting = (
        number
        for number, ((provider, status, like), _, _) in enumerate(TABLE)
        if (provider, status) == (body.provider, body.status) and fnmatch(body.name, like)
    )
    return next(fitting)


def test_every_file_is_in_the_index():
    root = bodies() and Path(os.environ[VARIABLE]) / "errors"
    assert {body.name for body in bodies()} == {file.name for file in Path(root).glob("*.json")}


def test_the_reasons_are_those_of_the_table():
    wrong = [
        (body.name, body.error.reason, TABLE[line_of(body)][1])
        for body in bodies()
        if body.error.reason != TABLE[line_of(body)][1]
    ]
    assert not wrong
    assert "unknown" not in {reason for _, reason, _ in TABLE}


def test_the_table_counts_every_body_once():
    counted = Counter(line_of(body) for body in bodies())
    assert [counted[number] for number in range(len(TABLE))] == [count for _, _, count in TABLE]
    assert sum(counted.values()) == len(bodies()) >= 200


def test_the_message_is_kept():
    for body in bodies():
        said = body.said
        message = said.get("message") or said.get("detail") or said.get("error")
        if message is None:
            assert body.error.message == f"HTTP {body.status}", body.name  # a page of HTML says nothing
        else:
            assert (body.error.message or "").startswith(message), body.name


def test_the_code_is_kept():
    for body in bodies():
        said, error = body.said, body.error
        kept = {error.code, str(error.status), *map(str, error.metadata.values())}
        for name in ("code", "type", "status"):
            if said.get(name) not in (None, "", "error"):
                assert str(said[name]) in kept, (body.name, name)
        assert error.status == body.status


def test_the_request_id_is_kept():
    with_id = [body for body in bodies() if b'"request_id"' in body.content and body.provider == "anthropic"]
    assert with_id
    for body in with_id:
        assert body.error.request_id == json.loads(body.content)["request_id"]


def test_what_the_provider_behind_a_router_said_is_told():
    routed = [body for body in bodies() if b'"raw"' in body.content]
    assert len(routed) >= 9
    for body in routed:
        assert (body.error.message or "").removeprefix("Provider returned error: ") not in ("", body.said["message"])


@pytest.mark.parametrize(
    ("status", "metadata", "message", "expected"),
    [
        (
            400,
            {"raw": '{"error": {"code": "context_length_exceeded"}}'},
            "Provider returned error",
            "context_length_exceeded",
        ),
        (400, {"raw": "maximum context length is 9 tokens"}, "Provider returned error", "context_length_exceeded"),
        (400, {"raw": '{"error": {"code": "content_filter"}}'}, "Provider returned error", "content_filter"),
        (403, {"reasons": ["violence"]}, "x requires moderation. Your input was flagged", "content_filter"),
        (403, {"raw": None}, "Key limit exceeded", "authentication_failed"),
        (402, {"raw": None}, "This request requires more credits, or fewer max_tokens.", "rate_limited"),
        (429, {"raw": "temporarily rate-limited upstream"}, "Provider returned error", "rate_limited"),
        (502, {"raw": ["no text"]}, "Provider returned error", "provider_unavailable"),
    ],
)
def test_the_reason_may_be_behind_the_router(status: int, metadata: dict[str, Any], message: str, expected: str):
    said = {"error": {"code": status, "message": message, "metadata": metadata}}
    error = OpenAIChat().error(status, {}, json.dumps(said).encode())
    assert (error.reason, error.code, error.metadata) == (expected, str(status), {"metadata": metadata})


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Insufficient Balance", "type": "unknown_error", "code": "invalid_request_error"}},
        {"error": {"message": "Insufficient credits", "code": 402}},
        {"error": {"type": "billing_error", "message": "Your credit balance is too low"}},
        {"detail": "Payment Required"},
    ],
)
def test_no_credit_left_is_a_limit_that_no_retry_lifts(body: dict[str, Any]):
    error = OpenAIChat().error(402, {}, json.dumps(body).encode())
    assert (error.reason, error.status) == ("rate_limited", 402)
    assert not RetryPolicy().allows(error, 1)


def test_a_quota_that_is_used_up_is_not_a_rate_that_passes():
    spent = {
        "error": {"code": "insufficient_quota", "type": "insufficient_quota", "message": "You exceeded your quota"}
    }
    fast = {"error": {"code": "rate_limit_exceeded", "message": "Too fast"}}
    errors = [OpenAIChat().error(429, {}, json.dumps(body).encode()) for body in (spent, fast)]
    assert [error.reason for error in errors] == ["rate_limited", "rate_limited"]
    assert [RetryPolicy().allows(error, 1) for error in errors] == [False, True]


@pytest.mark.parametrize(
    "body",
    [
        {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa***ey. You can ..."},
        {"code": "Client specified an invalid argument", "error": "Incorrect%20API%20key%20provided:%20xa***ey."},
        {"error": {"message": "API key not valid. Please pass a valid API key."}},
    ],
)
def test_a_key_that_is_refused_with_400_is_not_tried_again(body: dict[str, Any]):
    error = OpenAIChat().error(400, {}, json.dumps(body).encode())
    assert (error.reason, error.status) == ("authentication_failed", 400)
    assert not RetryPolicy().allows(error, 1)


@pytest.mark.parametrize(
    "message",
    [
        "Messages too long",
        "Total message length is too long",
        "Conversation too long: 130000 tokens, the maximum is 127072",
        "Input is too long for requested model.",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "Please reduce the length of the messages or completion.",
        "prompt too long; exceeded max context length by 10 tokens",
        "Your request exceeded model token limit: 131072 (requested: 200000)",
    ],
)
def test_too_long_is_said_in_many_words(message: str):
    error = OpenAIChat().error(400, {}, json.dumps({"error": {"message": message, "code": 400}}).encode())
    assert error.reason == "context_length_exceeded"


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        (
            400,
            "Invalid 'input[1].call_id': string too long. Expected a string with maximum length 64",
            "invalid_request",
        ),
        (400, "Invalid 'tools': array too long. Expected an array with maximum length 128", "invalid_request"),
        (400, "max_tokens is too large: 100000. This model supports at most 4096", "invalid_request"),
        (400, "Image is too large", "invalid_request"),
        (500, "The request took too long", "provider_unavailable"),
    ],
)
def test_what_is_too_long_may_be_something_else(status: int, message: str, reason: str):
    error = OpenAIChat().error(status, {}, json.dumps({"error": {"message": message}}).encode())
    assert error.reason == reason


@pytest.mark.parametrize("blanks", [b" ", b"  \n", b"\t\r\n ", b"\xef\xbb\xbf \n"])
@pytest.mark.parametrize("adapter", [Anthropic, Gemini, OpenAIChat, OpenAIResponses])
def test_an_error_behind_blanks_is_read_whatever_its_status(adapter: Any, blanks: bytes):
    said = blanks + json.dumps({"error": {"message": "prompt is too long: 3 tokens", "code": 400}}).encode()
    decoder = adapter().decoder(Request())
    events = [event for byte in said for event in decoder.feed(bytes([byte]))] + decoder.close()
    assert events[-1].error.reason == "context_length_exceeded"
    assert adapter().error(400, {}, said.removeprefix(b"\xef\xbb\xbf")).reason == "context_length_exceeded"
