"""Why a provider said no."""

import msgspec
import pytest

from rxllm.adapters._http_errors import http_error, retry_after
from rxllm.adapters.openai_chat import OpenAIChat
from rxllm.values import AdapterError


def reason(status: int, error: object) -> str:
    return http_error("p", status, {}, msgspec.json.encode(error)).reason


def test_all_that_an_error_says():
    body = b'{"error": {"message": "Slow down", "type": "requests", "param": null, "code": "rate_limit_exceeded"}}'
    error = OpenAIChat(api_key="k").error(429, {"Retry-After": "2", "X-Request-Id": "req_1"}, body)
    assert error == AdapterError(
        "rate_limited",
        "Slow down",
        provider="openai",
        status=429,
        code="rate_limit_exceeded",
        retry_after=2.0,
        request_id="req_1",
        metadata={"type": "requests"},
    )


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request"),
        (401, "authentication_failed"),
        (402, "rate_limited"),
        (403, "authentication_failed"),
        (404, "invalid_request"),
        (408, "timeout"),
        (413, "invalid_request"),
        (422, "invalid_request"),
        (429, "rate_limited"),
        (500, "provider_unavailable"),
        (503, "provider_unavailable"),
        (529, "provider_unavailable"),
    ],
)
def test_the_status(status: int, expected: str):
    assert reason(status, {"error": {"message": "no"}}) == expected


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (400, {"code": "context_length_exceeded"}, "context_length_exceeded"),
        (400, {"message": "This model's maximum context length is 8192 tokens."}, "context_length_exceeded"),
        (400, {"type": "exceed_context_size_error"}, "context_length_exceeded"),
        (413, {"message": "prompt is too long: 210000 tokens > 200000 maximum"}, "context_length_exceeded"),
        (400, {"code": "content_filter"}, "content_filter"),
        (400, {"message": "triggering Azure OpenAI's content management policy"}, "content_filter"),
        (
            400,
            {
                "message": "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
                "code": "invalid_prompt",
            },
            "content_filter",
        ),
        (400, {"message": "Invalid prompt: it is empty", "code": "invalid_prompt"}, "invalid_request"),
        (400, {"message": "no", "code": "cyber_policy"}, "content_filter"),
        (400, {"message": "Content Exists Risk", "type": "invalid_request_error"}, "content_filter"),
        (
            400,
            {"code": 400, "status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]},
            "authentication_failed",
        ),
        (400, {"type": "invalid_request_error", "code": "invalid_value"}, "invalid_request"),
    ],
)
def test_the_code_or_the_message(status: int, error: object, expected: str):
    assert reason(status, {"error": error}) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no"}}', "no"),
        (b'{"error": "no"}', "no"),
        (b'{"message": "no"}', "no"),
        (b'{"detail": "no"}', "no"),
        (b'{"detail": [{"msg": "no"}]}', '[{"msg":"no"}]'),
        (b'[{"error": {"message": "no"}}]', "no"),
        (b"no", "no"),
        (b"<html>no</html>", "HTTP 400"),
        (b"", "HTTP 400"),
        (b"{}", "HTTP 400"),
        (b"\xff", "\ufffd"),
    ],
)
def test_the_message(body: bytes, message: str):
    assert http_error("p", 400, {}, body).message == message


def test_how_long_to_wait():
    date = "Wed, 21 Oct 2026 07:28:00 GMT"
    assert retry_after({"retry-after": "1.5"}) == 1.5
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": date}) == 30
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}) == 0
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None
    body = b'{"error": {"code": 429, "details": [{"retryDelay": "34.5s"}]}}'
    assert http_error("p", 429, {}, body).retry_after == 34.5


def test_a_long_message_is_cut_before_its_words_are_looked_at():
    long = "token count " * 8_000
    error = http_error("p", 400, {}, msgspec.json.encode({"error": {"message": long}}))
    assert (error.reason, error.message) == ("invalid_request", f"{long[:1_999]}…")
    assert reason(400, {"error": {"message": "the token count exceeds 8"}}) == "context_length_exceeded"
    assert reason(400, {"error": {"message": f"{'x' * 2_000} the token count exceeds 8"}}) == "invalid_request"


@pytest.mark.parametrize("delay", ["9" * 30_000, "34.5", "1.2.3s", "s"])
def test_a_delay_that_is_not_a_number_of_seconds_is_not_read(delay: str):
    body = msgspec.json.encode({"error": {"code": 429, "details": [{"retryDelay": delay}]}})
    assert http_error("p", 429, {}, body).retry_after is None
