"""Every recorded stream of Gemini: lawful, the same however it is cut, and what the official SDK makes of it.

Where the fold differs from what the SDK's chunks add up to, a named rule of ours says why; a difference that no rule
explains is a failure.
"""

from __future__ import annotations

import base64
import json
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest

from rxllm.adapters.gemini.decoder import GeminiDecoder
from rxllm.adapters.gemini.request import contents_of
from rxllm.collector import StreamCollector
from rxllm.events import Event, RawChunk
from rxllm.testing import chunkings, cut
from rxllm.values import ProviderPart, Response, StreamError, ThinkingPart
from tests.corpus import Recording, recordings
from tests.wire.lawful import apart, lawful

pytestmark = pytest.mark.judges

httpx = pytest.importorskip("httpx")
genai = pytest.importorskip("google.genai")


class Fold(NamedTuple):
    """What is compared; signatures as the bytes they stand for."""

    text: str
    thinking: str
    signatures: list[bytes]
    calls: list[tuple[str, dict[str, Any]]]
    finish_reason: str | None
    usage: tuple[int | None, ...] | None
    id: str | None


class Case(NamedTuple):
    recording: Recording
    response: Response[Any]
    chunks: list[Any]  # the SDK's
    failure: Exception | None  # the SDK's


def decode(*chunks: bytes, **options: Any) -> list[Event]:
    decoder = GeminiDecoder(**options)
    return [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.close()


def fold(events: list[Event]) -> Response[Any]:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_response()


@cache
def sdk() -> tuple[Any, list[bytes]]:
    """The SDK's client, slow to make, and what its server will answer."""
    bodies: list[bytes] = []
    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, headers=headers, content=bodies.pop()))
    options = genai.types.HttpOptions(httpx_client=httpx.Client(transport=transport))
    return genai.Client(api_key="none", http_options=options), bodies


def stream(body: bytes) -> Any:
    client, bodies = sdk()
    bodies.append(body)
    return client.models.generate_content_stream(model="any", contents="any")


def as_events(body: bytes) -> bytes:
    """The body as the SDK can read it: an array's elements as events."""
    if not body.startswith(b"["):
        return body
    return b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in json.loads(body))


def by_sdk(body: bytes) -> tuple[list[Any], Exception | None]:
    chunks: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for chunk in stream(as_events(body)):
                chunks.append(chunk)
        except Exception as error:
            return chunks, error
    return chunks, None


def signature_bytes(signature: str) -> bytes:
    # The SDK gives bytes; what a recording had taken out is no base64, and read as leniently as the SDK reads it.
    return base64.urlsafe_b64decode(signature.replace("+", "-").replace("/", "_") + "==")


def ours(response: Response[Any]) -> Fold:
    usage = response.usage
    parts = response.message.parts
    calls = [call.metadata.get("google", {}) for call in response.message.tool_calls]
    held = [part.data for part in parts if isinstance(part, ProviderPart)] + calls
    signatures = [each["thoughtSignature"] for each in held if "thoughtSignature" in each]
    signatures += [part.signature for part in parts if isinstance(part, ThinkingPart) and part.signature]
    cached, thought = usage.cached_input_tokens, usage.reasoning_tokens
    counted = (usage.input_tokens, usage.output_tokens, usage.total_tokens, cached, thought)
    return Fold(
        response.output_text,
        "".join(part.text for part in parts if isinstance(part, ThinkingPart)),
        sorted(signature_bytes(each) for each in signatures),
        [(call.name, dict(call.arguments)) for call in response.tool_calls],
        response.raw_finish_reason,
        None if counted == (None,) * 5 else counted,
        response.id,
    )


def theirs(chunks: list[Any]) -> Fold:
    candidates = [each for chunk in chunks for each in (chunk.candidates or [])[:1]]
    parts = [part for each in candidates if each.content for part in each.content.parts or ()]
    reasons = [str(each.finish_reason.value) for each in candidates if each.finish_reason]
    counted = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    return Fold(
        "".join(part.text or "" for part in parts if not part.thought),
        "".join(part.text or "" for part in parts if part.thought),
        sorted(part.thought_signature for part in parts if part.thought_signature),
        [(part.function_call.name, part.function_call.args or {}) for part in parts if part.function_call],
        reasons[-1] if reasons else None,
        usage_of(counted[-1]) if counted else None,
        next((chunk.response_id for chunk in chunks if chunk.response_id), None),
    )


def usage_of(counted: Any) -> tuple[int | None, ...] | None:
    said, thought = counted.candidates_token_count, counted.thoughts_token_count
    output = said if thought is None else (said or 0) + thought
    asked, tools = counted.prompt_token_count, counted.tool_use_prompt_token_count
    asked = asked if tools is None else (asked or 0) + tools
    found = (asked, output, counted.total_token_count, counted.cached_content_token_count, thought)
    return None if found == (None,) * 5 else found


@cache
def cases() -> tuple[Case, ...]:
    return tuple(Case(each, fold(decode(each.body)), *by_sdk(each.body)) for each in recordings("gemini"))


def joins_partial_calls(case: Case) -> bool:
    named = [name for name, _ in theirs(case.chunks).calls if name]
    return b"partialArgs" in case.recording.body and named == [call.name for call in case.response.tool_calls]


RULES: dict[str, tuple[set[str], Callable[[Case], bool]]] = {
    # the SDK hands out each piece of a call as a call
    "pieces of arguments make one call": ({"calls"}, joins_partial_calls),
    "the SDK raises on enumerations as numbers": (
        {"text", "finish_reason", "usage", "id"},
        lambda case: isinstance(case.failure, AttributeError) and (case.response.raw_finish_reason or "").isdigit(),
    ),
    # the SDK's types know the live API's name of this counter only there
    "responseTokenCount is output": ({"usage"}, lambda case: b"responseTokenCount" in case.recording.body),
}


def is_raw(event: Event) -> bool:
    return isinstance(event, RawChunk)


def test_every_stream_is_lawful():
    for recording in recordings("gemini"):
        try:
            events = decode(recording.body)
            lawful(events)
            apart(events)
        except AssertionError as error:
            raise AssertionError(f"{recording}: {error}") from error


def test_any_cut_gives_the_same_events():
    for recording in recordings("gemini"):
        whole, cut_up = (decode(*chunks) for chunks in chunkings(recording.body, cuts=50))
        assert cut_up == whole, recording


def test_byte_by_byte_gives_the_same_events():
    small = [each for each in recordings("gemini") if len(each.body) < 8_000]
    assert small
    for recording in small:
        assert decode(*cut(recording.body, *range(len(recording.body)))) == decode(recording.body), recording


def test_raw_adds_raw_chunks_and_changes_nothing_else():
    for recording in recordings("gemini"):
        plain = [event for event in decode(recording.body) if not is_raw(event)]
        events = decode(recording.body, raw=True)
        assert [event for event in events if not is_raw(event)] == plain, recording
        assert len(events) > len(plain)


def test_only_streams_without_a_finish_reason_are_truncated():
    failed = {str(case.recording) for case in cases() if case.response.error is not None}
    assert failed == {str(each) for each in recordings("gemini") if "no_finish_reason" in each.features}
    errors = [case.response.error for case in cases() if case.response.error is not None]
    assert all(isinstance(error, StreamError) and error.reason == "truncated" for error in errors)


def sent_parts(body: bytes) -> list[dict[str, Any]]:
    """What came, as it should go back: unsigned thoughts left out, unsigned texts joined."""
    chunks = json.loads(body) if body.startswith(b"[") else sse_data(body)
    candidates = [each for chunk in chunks for each in chunk.get("candidates", ())]
    sent: list[dict[str, Any]] = []
    joins = False
    for part in (part for each in candidates for part in each.get("content", {}).get("parts", ())):
        signed = "thoughtSignature" in part
        if "functionCall" in part:
            part["functionCall"].setdefault("args", {})
        if not signed and (part.get("thought") or part.get("text") == ""):
            joins = joins and not part.get("thought")
        elif joins and part.keys() == {"text"}:
            sent[-1]["text"] += part["text"]
        else:
            sent.append(part)
            joins = part.keys() == {"text"}
    return sent


def sse_data(body: bytes) -> list[Any]:
    return [json.loads(line[5:]) for line in body.splitlines() if line.startswith(b"data:")]


def test_every_message_goes_back_as_it_came():
    signed = 0
    for case in cases():
        if b"partialArgs" in case.recording.body:
            continue
        expected = sent_parts(case.recording.body)
        contents = contents_of([case.response.message], "gemini-2.5-flash")
        assert contents == ([{"role": "model", "parts": expected}] if expected else []), case.recording
        for content in contents:
            genai.types.Content.model_validate(content)
        signed += sum("thoughtSignature" in part for part in expected)
    assert signed >= 20


def test_the_sdk_reads_no_array():
    array = next(each for each in recordings("gemini") if each.form == "json-array")
    with pytest.raises(genai.errors.UnknownApiResponseError):
        list(stream(array.body))


def test_the_fold_is_the_sdks_but_for_our_rules():
    used: Counter[str] = Counter()
    unexplained: list[Any] = []
    for case in cases():
        mine, other = ours(case.response), theirs(case.chunks)
        for aspect in Fold._fields:
            if getattr(mine, aspect) == getattr(other, aspect):
                continue
            rule = next((name for name, (of, holds) in RULES.items() if aspect in of and holds(case)), None)
            used[str(rule)] += 1
            if rule is None:
                unexplained.append((str(case.recording), aspect, getattr(mine, aspect), getattr(other, aspect)))
    print(dict(used))  # pytest -rP shows it
    assert not unexplained
    assert set(used) == set(RULES), "a rule that explains nothing is no rule"
