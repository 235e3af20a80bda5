"""Every recorded Messages stream: lawful, the same however it is cut, and what the official SDK makes of it.

Where the fold differs from the SDK's, a named rule of ours says why; a difference that no rule explains is a failure.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from rxllm.adapters.anthropic.decoder import FINISH_REASONS, MessagesDecoder
from rxllm.adapters.anthropic.request import turns_of
from rxllm.collector import StreamCollector, is_server
from rxllm.events import Event, RawChunk
from rxllm.testing import chunkings, cut
from rxllm.values import Message, ProviderPart, Response, SourcePart, ThinkingPart, ToolCall, user
from tests.adapters.anthropic.sdk import asked
from tests.corpus import Recording, recordings
from tests.wire.lawful import apart, lawful

pytestmark = pytest.mark.judges

httpx2 = pytest.importorskip("httpx2")
anthropic = pytest.importorskip("anthropic")
streaming = pytest.importorskip("anthropic.lib.streaming._beta_messages")

API = "anthropic-messages"


class Fold(NamedTuple):
    """What is compared. `usage`: input, output, cached, cache-written, thinking."""

    text: str
    thinking: list[tuple[str, str | None]]
    calls: list[tuple[str, str, Any]]
    server_calls: list[tuple[str, str, Any]]
    citations: list[Any]
    opaque: list[Any]
    finish_reason: str | None
    usage: tuple[int | None, ...]
    failed: bool


class Case(NamedTuple):
    recording: Recording
    response: Response[Any]
    snapshot: Any  # the SDK's
    failure: Exception | None  # the SDK's


def decode(*chunks: bytes, raw: bool = False) -> list[Event]:
    decoder = MessagesDecoder(raw=raw)
    return [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.close()


def fold(events: list[Event]) -> Response[Any]:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_response()


def responses(recording: Recording) -> list[bytes]:
    """The bytes of each response: some recordings are a whole conversation."""
    starts = [
        match.start() for match in re.finditer(rb'(event: message_start\n)?data: .*"message_start"', recording.body)
    ]
    return [recording.body[a:b] for a, b in pairwise([*starts, len(recording.body)])]


def named(body: bytes) -> bytes:
    """The SDK reads only events that have a name; where the recording lost them, they are its frames' types."""
    if b"event: " in body:
        return body
    lines = [line for line in body.splitlines() if line]
    kinds = (json.loads(line.removeprefix(b"data: "))["type"] for line in lines)
    return b"".join(b"event: %b\n%b\n\n" % (kind.encode(), line) for kind, line in zip(kinds, lines, strict=True))


def by_sdk(body: bytes) -> tuple[Any, Exception | None]:
    answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=named(body))
    http = httpx2.Client(transport=httpx2.MockTransport(lambda request: answer))
    snapshot, buffers = None, dict[int, bytes]()
    with http:
        client = anthropic.Anthropic(api_key="none", http_client=http, max_retries=0)
        try:
            for event in client.beta.messages.create(model="any", messages=[], max_tokens=1, stream=True):
                snapshot = streaming.accumulate_event(
                    event=event, current_snapshot=snapshot, json_bufs=buffers, request_headers=httpx2.Headers()
                )
        except Exception as error:
            return snapshot, error
    return snapshot, None


def said(calls: tuple[ToolCall, ...]) -> list[tuple[str, str, Any]]:
    return [(call.id, call.name, call.arguments) for call in calls]


def ours(response: Response[Any]) -> Fold:
    message, usage = response.message or Message("assistant"), response.usage
    sources = [part.source for part in message.parts if isinstance(part, SourcePart)]
    thinking = [part for part in message.parts if isinstance(part, ThinkingPart)]
    return Fold(
        response.output_text,
        [(part.text or (part.provider_data or {}).get("data", ""), part.signature) for part in thinking],
        said(response.tool_calls),
        said(tuple(call for call in message.tool_calls if is_server(call))),
        [source for source in sources if str(source.get("type")).endswith("_location")],
        [part.data for part in message.parts if isinstance(part, ProviderPart)],
        response.finish_reason,
        (
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_input_tokens,
            usage.cache_write_input_tokens,
            usage.reasoning_tokens,
        ),
        response.error is not None,
    )


def theirs(snapshot: Any, failure: Exception | None) -> Fold:
    content, usage = snapshot.content, snapshot.usage
    blocks = {kind: [block for block in content if block.type == kind] for kind in {block.type for block in content}}
    servers = [block for block in content if block.type in ("server_tool_use", "mcp_tool_use")]
    known = {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use"}
    details = usage.output_tokens_details
    cached, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return Fold(
        "".join(block.text for block in blocks.get("text", ())),
        [
            (block.thinking, block.signature) if block.type == "thinking" else (block.data, None)
            for block in content
            if block.type.endswith("thinking")
        ],
        [(block.id, block.name, block.input) for block in blocks.get("tool_use", ())],
        [(block.id, block.name, block.input) for block in servers],
        [citation.to_dict() for block in blocks.get("text", ()) for citation in block.citations or ()],
        [block.to_dict() for block in content if block.type not in known],
        FINISH_REASONS[snapshot.stop_reason],
        (
            usage.input_tokens + (cached or 0) + (written or 0),
            usage.output_tokens,
            cached,
            written,
            details.thinking_tokens if details else None,
        ),
        failure is not None,
    )


def without_nulls(blocks: list[Any]) -> list[Any]:
    return [{name: held for name, held in block.items() if held is not None} for block in blocks]


def counts_of(usages: list[Any]) -> list[int]:
    names = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens")
    return [sum(usage[name] for usage in usages) for name in names]


RULES: dict[str, tuple[set[str], Callable[[Case], bool]]] = {
    "nothing after message_stop is read": (
        {"failed"},
        # a gateway sends OpenAI's end marker too, under a name of its own, and the SDK wants JSON of it
        lambda case: isinstance(case.failure, json.JSONDecodeError) and b"[DONE]" in case.recording.body,
    ),
    "counts are the sums over all requests that the server made": (
        {"usage"},
        lambda case: counts_of(case.response.usage.extra["iterations"]) == counts_of([vars(case.response.usage)]),
    ),
    "what an opaque block does not say is not made up": (
        {"opaque"},
        lambda case: without_nulls(ours(case.response).opaque) == without_nulls(theirs(case.snapshot, None).opaque),
    ),
}


@cache
def cases() -> tuple[Case, ...]:
    found = ((each, body) for each in recordings(API) for body in responses(each))
    return tuple(Case(each, fold(decode(body)), *by_sdk(body)) for each, body in found)


def test_every_stream_is_lawful():
    for recording in recordings(API):
        try:
            for body in (recording.body, *responses(recording)):
                events = decode(body)
                lawful(events)
                apart(events)
        except AssertionError as error:
            raise AssertionError(f"{recording}: {error}") from error


def test_any_cut_gives_the_same_events():
    for recording in recordings(API):
        whole, cut_up = (decode(*chunks) for chunks in chunkings(recording.body, cuts=50))
        assert cut_up == whole, recording


def test_byte_by_byte_gives_the_same_events():
    small = [each for each in recordings(API) if len(each.body) < 6000]
    assert small
    for recording in small:
        assert decode(*cut(recording.body, *range(len(recording.body)))) == decode(recording.body), recording


def test_raw_adds_raw_chunks_and_changes_nothing_else():
    for recording in recordings(API):
        events = decode(recording.body, raw=True)
        assert [each for each in events if not is_frame(each)] == decode(recording.body), recording


def is_frame(event: Event) -> bool:
    return isinstance(event, RawChunk)


def test_no_frame_is_unknown():
    for recording in recordings(API):
        assert not any(is_frame(event) for event in decode(recording.body)), recording


def test_the_fold_is_the_sdks_but_for_our_rules():
    used: Counter[str] = Counter()
    unexplained: list[Any] = []
    for case in cases():
        mine, other = ours(case.response), theirs(case.snapshot, case.failure)
        for aspect in Fold._fields:
            if getattr(mine, aspect) == getattr(other, aspect):
                continue
            rule = next((name for name, (of, holds) in RULES.items() if aspect in of and holds(case)), None)
            used[str(rule)] += 1
            if rule is None:
                unexplained.append((str(case.recording), aspect, getattr(mine, aspect), getattr(other, aspect)))
    assert not unexplained
    assert set(used) == set(RULES), "a rule that explains nothing is no rule"


def sent_back(message: Message) -> list[dict[str, Any]]:
    """The blocks of an answer that is no prefill."""
    turn = turns_of((message, Message("user", "more")), "anthropic")[0]
    if turn["role"] == "user":
        return []
    return [{"type": "text", "text": turn["content"]}] if isinstance(turn["content"], str) else turn["content"]


def plain(held: Any) -> Any:
    """Without what says nothing: nulls, no citations, a call that the model made itself."""
    match held:
        case dict():
            empty = (None, {"type": "direct"})
            return {k: plain(v) for k, v in held.items() if v not in empty and not (k == "citations" and not v)}
        case list():
            return [plain(each) for each in held]
        case _:
            return held


def test_what_was_said_goes_back_as_the_sdk_would_send_it():
    for case in cases():
        blocks = [block.to_dict() for block in case.snapshot.content]
        said = [block for block in blocks if block.get("text", "x").strip()]
        assert case.response.message is not None
        assert plain(sent_back(case.response.message)) == plain(said), case.recording


def test_what_was_said_may_go_back():
    for case in cases():
        assert case.response.message is not None
        asked(user("Hi"), case.response.message, user("more"))  # which checks the SDK's types
