"""Every recorded Chat Completions stream: lawful, the same however it is cut, and what the official SDK makes of it.

Where the fold differs from the SDK's, a named rule of ours says why; a difference that no rule explains is a failure.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import pytest

from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.collector import StreamCollector
from rxllm.events import Event, RawChunk
from rxllm.testing import chunkings, cut
from rxllm.values import Response
from tests.corpus import Recording, recordings
from tests.wire.lawful import apart, lawful

pytestmark = pytest.mark.judges

httpx2 = pytest.importorskip("httpx2")
openai = pytest.importorskip("openai")
streaming = pytest.importorskip("openai.lib.streaming.chat")


class Fold(NamedTuple):
    """What is compared."""

    text: str
    calls: list[tuple[str, str, str]]
    finish_reason: str | None
    usage: tuple[int | None, int | None, int | None] | None


class Case(NamedTuple):
    recording: Recording
    response: Response[Any]
    snapshot: Any  # the SDK's, None where it has none
    failure: Exception | None  # the SDK's


def decode(*chunks: bytes) -> list[Event]:
    decoder = ChatDecoder(n=choices_in(b"".join(chunks)))
    return [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.close()


def choices_in(body: bytes) -> int:
    """How many choices its request asked for."""
    frames = [json.loads(data) for data in re.findall(rb"^data: ?(\{.*\})\s*$", body, re.MULTILINE)]
    return len({choice.get("index") for frame in frames for choice in frame.get("choices") or ()}) or 1


def fold(events: list[Event]) -> Response[Any]:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_response()


def by_sdk(body: bytes) -> tuple[Any, Exception | None]:
    answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    http = httpx2.Client(transport=httpx2.MockTransport(lambda request: answer))
    state = streaming.ChatCompletionStreamState()
    failure = None
    with http, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic's, of content that is not text
        client = openai.OpenAI(api_key="none", http_client=http, max_retries=0)
        try:
            for chunk in client.chat.completions.create(model="any", messages=[], stream=True):
                state.handle_chunk(chunk)
        except Exception as error:
            failure = error
        try:
            return state.current_completion_snapshot, failure
        except AssertionError:
            return None, failure


def ours(response: Response[Any]) -> Fold:
    usage = response.usage
    counted = (usage.input_tokens, usage.output_tokens, usage.total_tokens)
    calls = [(call.id, call.name, call.raw_arguments or "") for call in response.tool_calls]
    return Fold(response.output_text, calls, response.finish_reason, None if counted == (None,) * 3 else counted)


def theirs(snapshot: Any) -> Fold:
    choices = [choice for choice in snapshot.choices if choice.index == 0] if snapshot else []
    usage = snapshot and snapshot.usage
    counted = (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) if usage else None
    if not choices:
        return Fold("", [], None, counted)
    message = choices[0].message
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return Fold(message.content or "", calls, choices[0].finish_reason, counted)


def reuses_index(case: Case) -> bool:
    # The SDK joins calls of one index: their arguments become a row of objects.
    joined = "".join(call.function.arguments or "" for call in case.snapshot.choices[0].message.tool_calls)
    return "".join(call.raw_arguments or "" for call in case.response.tool_calls) == joined


def is_derived(case: Case) -> bool:
    given, derived = case.response.raw_finish_reason, case.response.finish_reason
    return given in (None, "stop") and derived == "tool_calls" and bool(case.response.tool_calls)


RULES: dict[str, tuple[set[str], Callable[[Case], bool]]] = {
    # the SDK's helper raises on chunks that its types do not foresee; the rest of the stream is lost to it
    "the SDK fails": (
        {"text", "calls", "finish_reason", "usage"},
        lambda case: case.failure is not None and not isinstance(case.failure, openai.APIError),
    ),
    "an error in the stream is a result": (
        {"calls", "finish_reason", "usage"},
        lambda case: case.response.error is not None and isinstance(case.failure, openai.APIError),
    ),
    "a refusal is text": (
        {"text"},
        lambda case: case.snapshot.choices[0].message.refusal == case.response.output_text,
    ),
    "a refusal finishes as content_filter": (
        {"finish_reason"},
        lambda case: bool(case.snapshot.choices[0].message.refusal) and case.response.finish_reason == "content_filter",
    ),
    "a new id on a used index is a new call": ({"calls"}, lambda case: reuses_index(case)),
    "complete calls make the finish reason tool_calls": ({"finish_reason"}, lambda case: is_derived(case)),
    "a late stop takes no tool_calls back": (
        {"finish_reason"},
        lambda case: case.response.raw_finish_reason == "tool_calls" and case.response.finish_reason == "tool_calls",
    ),
    "groq's usage counts": (
        {"usage"},
        lambda case: case.snapshot.usage is None and b"x_groq" in case.recording.body,
    ),
    "thoughts that xAI counts beside the output belong to it": (
        {"usage"},
        lambda case: (
            case.snapshot.usage.completion_tokens + case.response.usage.reasoning_tokens
            == case.response.usage.output_tokens
        ),
    ),
}


RUN = 8
"""Of so many deltas of text or thinking of one shape in a row, those in the middle are left out: to the SDK each costs
a fifth of a millisecond, and no decoder can tell them apart. All else of all recordings stays; other tests read all."""

TEXTS = ("content", "reasoning", "reasoning_content")


def shape(value: Any) -> Any:
    """The names in a JSON value, and the types of what is under them."""
    if isinstance(value, dict):
        return tuple((name, shape(entry)) for name, entry in value.items())
    return tuple(map(shape, value)) if isinstance(value, list) else type(value)


def shape_of_text(frame: bytes) -> Any:
    """The shape of a frame that is a delta of text or thinking alone; any other frame is like itself only."""
    try:
        chunk = json.loads(frame.removeprefix(b"data:"))
        deltas = [choice["delta"] for choice in chunk["choices"]]
        is_text = all(any(map(delta.get, TEXTS)) and not delta.get("tool_calls") for delta in deltas)
    except (ValueError, KeyError, TypeError, AttributeError):
        return frame
    return shape(chunk) if deltas and is_text else frame


def shortened(body: bytes) -> bytes:
    kept: list[bytes] = []
    for _, frames in groupby(body.split(b"\n\n"), key=shape_of_text):
        run = list(frames)
        kept += run if len(run) <= RUN else run[: RUN // 2] + run[-RUN // 2 :]
    return b"\n\n".join(kept)


def cases() -> Iterator[Case]:
    for recording in recordings("openai-chat"):
        body = shortened(recording.body)
        yield Case(recording, fold(decode(body)), *by_sdk(body))


def test_every_stream_is_lawful():
    for recording in recordings("openai-chat"):
        try:
            events = decode(recording.body)
            lawful(events)
            apart(events)
        except AssertionError as error:
            raise AssertionError(f"{recording}: {error}") from error


def test_any_cut_gives_the_same_events():
    for recording in recordings("openai-chat"):
        whole, cut_up = (decode(*chunks) for chunks in chunkings(recording.body, cuts=50))
        assert cut_up == whole, recording


def test_byte_by_byte_gives_the_same_events():
    small = [each for each in recordings("openai-chat") if len(each.body) < 12_000]
    assert small
    for recording in small:
        assert decode(*cut(recording.body, *range(len(recording.body)))) == decode(recording.body), recording


def test_raw_adds_one_raw_chunk_per_frame_and_changes_nothing_else():
    for recording in recordings("openai-chat"):
        decoder = ChatDecoder(raw=True, n=choices_in(recording.body))
        events = decoder.feed(recording.body) + decoder.close()
        assert [each for each in events if not isinstance(each, RawChunk)] == decode(recording.body), recording


def test_the_fold_is_the_sdks_but_for_our_rules():
    used: Counter[str] = Counter()
    unexplained: list[Any] = []
    for case in cases():
        mine, other = ours(case.response), theirs(case.snapshot)
        for aspect in Fold._fields:
            if getattr(mine, aspect) == getattr(other, aspect):
                continue
            rule = next((name for name, (of, holds) in RULES.items() if aspect in of and holds(case)), None)
            used[str(rule)] += 1
            if rule is None:
                unexplained.append((str(case.recording), aspect, getattr(mine, aspect), getattr(other, aspect)))
    assert not unexplained
    assert set(used) == set(RULES), "a rule that explains nothing is no rule"
