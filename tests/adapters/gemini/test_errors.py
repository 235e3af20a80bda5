"""Why Google said no."""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rxllm.adapters.gemini import Gemini
from rxllm.values import AdapterError
from tests.corpus import VARIABLE


def answered(status: int, message: str, name: str, details: Any = ()) -> AdapterError:
    payload = {"error": {"code": status, "message": message, "status": name, "details": list(details)}}
    return Gemini(api_key="k").error(status, {}, msgspec.json.encode(payload))


def test_all_that_an_error_says():
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    assert answered(429, "quota", "RESOURCE_EXHAUSTED", [retry]) == AdapterError(
        "rate_limited",
        "quota",
        provider="google",
        status=429,
        code="RESOURCE_EXHAUSTED",
        retry_after=34.5,
        metadata={"details": [retry]},
    )


@pytest.mark.parametrize(
    ("status", "name", "message", "expected"),
    [
        (400, "INVALID_ARGUMENT", "Please use a valid role", "invalid_request"),
        (
            400,
            "INVALID_ARGUMENT",
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            "context_length_exceeded",
        ),
        (400, "FAILED_PRECONDITION", "User location is not supported for the API use.", "invalid_request"),
        (401, "UNAUTHENTICATED", "invalid authentication credentials", "authentication_failed"),
        (403, "PERMISSION_DENIED", "no", "authentication_failed"),
        (404, "NOT_FOUND", "models/m is not found", "invalid_request"),
        (429, "RESOURCE_EXHAUSTED", "Resource exhausted", "rate_limited"),
        (500, "INTERNAL", "An internal error has occurred.", "provider_unavailable"),
        (503, "UNAVAILABLE", "The model is overloaded.", "provider_unavailable"),
        (504, "DEADLINE_EXCEEDED", "Deadline expired", "provider_unavailable"),
    ],
)
def test_the_table_of_the_documentation(status: int, name: str, message: str, expected: str):
    error = answered(status, message, name)
    assert (error.reason, error.code, error.message, error.status) == (expected, name, message, status)


def test_an_array_holds_the_error_of_a_stream_that_is_an_array():
    body = msgspec.json.encode([{"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}])
    error = Gemini(api_key="k").error(429, {}, body)
    assert (error.reason, error.message) == ("rate_limited", "m")


RECORDED = {
    ("400", "valid role"): ("invalid_request", "INVALID_ARGUMENT"),
    ("400", "temperature value"): ("invalid_request", "INVALID_ARGUMENT"),
    ("404", "Publisher Model"): ("invalid_request", "NOT_FOUND"),
    ("404", "is not found for API version"): ("invalid_request", "NOT_FOUND"),
    ("400", "API key not valid"): ("authentication_failed", "INVALID_ARGUMENT"),
    ("403", "unregistered callers"): ("authentication_failed", "PERMISSION_DENIED"),
    ("429", "Resource exhausted"): ("rate_limited", "RESOURCE_EXHAUSTED"),
    ("400", "contents is required"): ("invalid_request", "INVALID_ARGUMENT"),
    ("400", "JSON mode is not enabled"): ("invalid_request", "INVALID_ARGUMENT"),
    ("400", "response modalities"): ("invalid_request", "INVALID_ARGUMENT"),
    ("400", "background interactions"): ("invalid_request", "invalid_request"),
}
"""What the recorded errors say, by status and words of the message, and what is made of it: reason and code."""


def test_every_recorded_error():
    root = Path(os.environ.get(VARIABLE) or "/nowhere") / "errors"
    if not root.is_dir():
        pytest.skip(f"recorded errors are not at hand: set {VARIABLE} to the streams' folder")
    used: Counter[tuple[str, str]] = Counter()
    for row in csv.DictReader((root / "index.csv").read_text().splitlines()):
        if row["provider"] not in ("google", "google-vertex"):
            continue
        error = Gemini(api_key="k").error(int(row["status"]), {}, (root / row["file"]).read_bytes())
        found = next(key for key in RECORDED if key[0] == row["status"] and key[1] in error.message)
        assert (error.reason, error.code) == RECORDED[found], row["file"]
        used[found] += 1
    assert set(used) == set(RECORDED)
