"""Why the server said no, before the stream and in it; and that leaving closes the connection."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from rxllm import Engine, chat, stream_generate, tool
from rxllm.adapters.openai_responses import OpenAIResponses
from rxllm.events import TextDelta
from rxllm.testing.loopback import STALL, Loopback, Reply
from rxllm.values import AdapterError
from tests.adapters.openai_responses.support import COMPLETED, CREATED, HI, WHOLE, added, done, response, said
from tests.closing import assert_closes
from tests.corpus import VARIABLE
from tests.waiting import until

REASONS = {
    "nonstreaming_unauthorized_preserves_status_and_body": "authentication_failed",
    "nonexistent_model_error_preserves_status_and_body": "invalid_request",
    "auth_rejection_carries_identity": "authentication_failed",
    "extractor_failure_surfaces_provider_error_context": "invalid_request",
    "nonexistent_previous_response_reference_carries_identity": "invalid_request",
    "provider_error_response_surfaces_cleanly": "invalid_request",
    "handshake_rejection_matches_the_http_twin.1": "authentication_failed",
    "responses_error": "authentication_failed",
    "test_responses_create_api_error-content_mode0": "invalid_request",
    "reasoning_basic": "invalid_request",
    "object_streaming": "invalid_request",
    "basic": "invalid_request",
    "usage": "invalid_request",
    "tool_round_trip_2": "invalid_request",
    "multi_tool": "invalid_request",
    "provider_error_classifies_with_contract_but_reports_no_id": "invalid_request",
}
"""What each recorded error means, by the last part of its name."""


def errors() -> Iterator[tuple[str, int, bytes]]:
    root = Path(os.environ.get(VARIABLE) or "/nowhere") / "errors"
    if not root.is_dir():
        pytest.skip(f"recorded errors are not at hand: set {VARIABLE} to their folder's parent")
    for row in csv.DictReader((root / "index.csv").read_text().splitlines()):
        if row["api"] == "openai-responses":
            yield row["file"], int(row["status"]), (root / row["file"]).read_bytes()


def test_every_recorded_error_has_its_reason_and_a_message():
    seen: set[str] = set()
    for name, status, body in errors():
        case = name.removesuffix(".json").rsplit("__", 1)[1]
        error = OpenAIResponses(api_key="k").error(status, {}, body)
        seen.add(case)
        assert (error.reason, error.status) == (REASONS[case], status), name
        assert error.message, name
        assert not error.message.startswith(("{", "HTTP")), name
    assert seen == set(REASONS)


FAILURES = {
    "server_error": "provider_unavailable",
    "rate_limit_exceeded": "rate_limited",
    "bio_policy": "content_filter",
    "misalignment_policy_violation": "content_filter",
    "image_content_policy_violation": "content_filter",
    "vector_store_timeout": "timeout",
}
"""The reasons of the codes with which a response fails; those of all others are the request's fault."""


@pytest.mark.judges
def test_every_code_of_a_failed_response_has_its_reason():
    error_types = pytest.importorskip("openai.types.responses.response_error")
    codes = get_args(error_types.ResponseError.model_fields["code"].annotation)
    assert set(FAILURES) < set(codes)
    for code in codes:
        error = said(CREATED + HI + response("failed", error={"code": code, "message": "no"}))[1].error
        assert isinstance(error, AdapterError)
        assert (error.reason, error.code) == (FAILURES.get(code, "invalid_request"), code)


def test_a_response_that_failed_without_a_word():
    error = said(CREATED + HI + response("failed"))[1].error
    assert isinstance(error, AdapterError)
    assert (error.reason, error.message) == ("unknown", "response status: failed")


def model(server: Loopback) -> Engine:
    return Engine(OpenAIResponses(base_url=server.url), model="m", retry=False)


@pytest.mark.sockets
def test_over_a_socket():
    with Loopback(Reply([WHOLE[:50], WHOLE[50:]])) as server:
        answered = list(stream_generate(model(server), "Hi"))
        assert [event.delta for event in answered if isinstance(event, TextDelta)] == ["Hi"]
        assert server.requests[0].path.endswith("/responses")
        assert server.requests[0].json["input"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.sockets
def test_a_chat_says_what_was_thought_and_done_to_the_next_turn():
    thought = {"type": "reasoning", "id": "t", "summary": [], "encrypted_content": "x"}
    called = {"type": "function_call", "id": "i", "call_id": "c", "name": "add", "arguments": '{"a":1,"b":2}'}
    first = [CREATED, added(0, thought), done(0, thought), added(1, called), done(1, called), COMPLETED]

    @tool
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    with Loopback([Reply([b"".join(first)]), Reply([WHOLE])]) as server:
        result = chat(model(server), "Hi", tools=[add]).run()
        assert result.final_response.output_text == "Hi"
        assert server.requests[1].json["input"] == [
            {"role": "user", "content": "Hi"},
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a":1,"b":2}'},
            {"type": "function_call_output", "call_id": "c", "output": "3"},
        ]


@pytest.mark.sockets
def test_a_call_that_is_left_is_closed_at_once():
    async def leave(server: Loopback) -> None:
        events: list[Any] = []
        subscription = stream_generate(model(server), "Hi").subscribe(events.append)
        await until(lambda: any(isinstance(event, TextDelta) for event in events))
        subscription.dispose()

    assert_closes(leave, Reply([CREATED, HI, STALL]))
