"""Why Anthropic said no."""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rxllm.adapters.anthropic import Anthropic
from rxllm.values import AdapterError
from tests.corpus import VARIABLE


def answered(status: int, error: Any, **headers: str) -> AdapterError:
    payload = {"type": "error", "error": error, "request_id": "req_1"}
    return Anthropic(api_key="k").error(status, headers, msgspec.json.encode(payload))


def test_all_that_an_error_says():
    assert answered(429, {"type": "rate_limit_error", "message": "Slow down"}, **{"retry-after": "2"}) == AdapterError(
        "rate_limited",
        "Slow down",
        provider="anthropic",
        status=429,
        code="rate_limit_error",
        retry_after=2.0,
        request_id="req_1",
    )


@pytest.mark.parametrize(
    ("status", "code", "message", "expected"),
    [
        (400, "invalid_request_error", "messages: roles must alternate", "invalid_request"),
        (400, "invalid_request_error", "prompt is too long: 200001 tokens > 200000 maximum", "context_length_exceeded"),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
            "context_length_exceeded",
        ),
        (401, "authentication_error", "invalid x-api-key", "authentication_failed"),
        (402, "billing_error", "no credit", "rate_limited"),
        (403, "permission_error", "no", "authentication_failed"),
        (404, "not_found_error", "model: m", "invalid_request"),
        (413, "request_too_large", "Request exceeds the maximum size", "invalid_request"),
        (429, "rate_limit_error", "no", "rate_limited"),
        (500, "api_error", "Internal server error", "provider_unavailable"),
        (504, "timeout_error", "no", "provider_unavailable"),
        (529, "overloaded_error", "Overloaded", "provider_unavailable"),
    ],
)
def test_the_table_of_the_documentation(status: int, code: str, message: str, expected: str):
    error = answered(status, {"type": code, "message": message})
    assert (error.reason, error.code, error.message) == (expected, code, message)


def test_an_error_in_another_shape():
    error = Anthropic(api_key="k").error(502, {}, b'{"type": "error", "message": "bad gateway"}')
    assert (error.reason, error.code, error.message) == ("provider_unavailable", None, "bad gateway")


RECORDED = {
    ("404", "model:"): "invalid_request",
    ("401", "API key is invalid"): "authentication_failed",
    ("400", "temperature: range"): "invalid_request",
    ("400", "too many parameters"): "invalid_request",
    ("400", "too many optional parameters"): "invalid_request",
    ("400", "too complex"): "invalid_request",
    ("400", "Too many strict tools"): "invalid_request",
    ("400", "input_schema"): "invalid_request",
    ("400", "tools.0.custom"): "invalid_request",
    ("400", "output_format.schema"): "invalid_request",
    ("400", "is not supported on this API"): "invalid_request",
}
"""What the recorded errors say, by status and words of the message, and what is made of it."""


def test_every_recorded_error():
    root = Path(os.environ.get(VARIABLE) or "/nowhere") / "errors"
    if not root.is_dir():
        pytest.skip(f"recorded errors are not at hand: set {VARIABLE} to the streams' folder")
    used: Counter[tuple[str, str]] = Counter()
    rows = list(csv.DictReader((root / "index.csv").read_text().splitlines()))
    for row in rows:
        if row["provider"] != "anthropic":
            continue
        error = Anthropic(api_key="k").error(int(row["status"]), {}, (root / row["file"]).read_bytes())
        found = next(key for key in RECORDED if key[0] == row["status"] and key[1] in error.message)
        assert error.reason == RECORDED[found], row["file"]
        assert error.code in ("invalid_request_error", "not_found_error", "authentication_error"), row["file"]
        used[found] += 1
    assert set(used) == set(RECORDED)
