"""Every recorded Responses stream: lawful, the same however it is cut, and what the official SDK makes of it.

Where the fold differs from the SDK's, a named rule of ours says why; a difference that no rule explains is a failure.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.collector import StreamCollector
from rxllm.events import Event, RawChunk
from rxllm.testing import chunkings, cut
from rxllm.values import ProviderPart, Response, SourcePart, ThinkingPart, ToolCall
from rxllm.wire.framing import SSEDecoder
from tests.corpus import Recording, recordings
from tests.wire.lawful import apart, lawful

pytestmark = pytest.mark.judges

httpx2 = pytest.importorskip("httpx2")
openai = pytest.importorskip("openai")
streaming = pytest.importorskip("openai.lib.streaming.responses._responses")

ENDS = ("response.completed", "response.incomplete", "response.failed")


class Fold(NamedTuple):
    """What is compared."""

    text: str
    thinking: str
    calls: list[tuple[str, str]]  # the client's, by id and name
    arguments: list[str]  # of the function calls
    opaque: list[str | None]  # the ids of the items that only the provider understands, reasoning included
    citations: int
    finish_reason: str | None
    usage: tuple[int | None, ...] | None


class Case(NamedTuple):
    recording: Recording
    response: Response[Any]
    snapshot: Any  # the SDK's, None where it has none
    failure: Exception | None  # the SDK's


def decode(*chunks: bytes, **options: Any) -> list[Event]:
    decoder = ResponsesDecoder(**options)
    return [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.close()


def fold(events: list[Event]) -> Response[Any]:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_response()


def by_sdk(body: bytes) -> tuple[Any, Exception | None]:
    answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    http = httpx2.Client(transport=httpx2.MockTransport(lambda request: answer))
    state = streaming.ResponseStreamState(text_format=openai.omit, input_tools=openai.omit)
    snapshot = None
    with http, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic's, of tools that it does not know
        client = openai.OpenAI(api_key="none", http_client=http, max_retries=0)
        try:
            with client.responses.create(model="any", input="", stream=True) as stream:
                for event in stream:
                    said = state.handle_event(event)
                    ends = [each.response for each in said if each.type in ENDS]
                    snapshot = ends[-1] if ends else snapshot
        except Exception as error:
            return snapshot, error.with_traceback(None)
    return snapshot, None


def is_client(item: Any) -> bool:
    of_client = ("function_call", "computer_call", "local_shell_call", "apply_patch_call", "mcp_approval_request")
    in_container = getattr(getattr(item, "environment", None), "type", "") == "container_reference"
    is_local = item.type == "shell_call" and not in_container
    return item.type in of_client or is_local or (item.type == "tool_search_call" and item.execution == "client")


def is_function(call: ToolCall) -> bool:
    return call.metadata.get("item", {}).get("type", "function_call") == "function_call"


def ours(response: Response[Any]) -> Fold:
    usage, parts = response.usage, response.message.parts if response.message else ()
    counted = (
        usage.input_tokens,
        usage.output_tokens,
        usage.total_tokens,
        usage.cached_input_tokens,
        usage.reasoning_tokens,
    )
    opaque = [part.data.get("id") for part in parts if isinstance(part, ProviderPart) and "id" in part.data]
    thought = [part for part in parts if isinstance(part, ThinkingPart)]
    return Fold(
        response.output_text,
        "".join(part.text for part in thought),
        [(call.id, call.name) for call in response.tool_calls],
        [call.raw_arguments or "" for call in response.tool_calls if is_function(call)],
        opaque + [part.provider_data["item"]["id"] for part in thought if part.provider_data],
        sum(isinstance(part, SourcePart) for part in parts),
        response.raw_finish_reason,
        None if counted == (None,) * 5 else counted,
    )


def theirs(snapshot: Any) -> Fold:
    if snapshot is None:
        return Fold("", "", [], [], [], 0, None, None)
    usage, output = snapshot.usage, snapshot.output
    reasoned = [item for item in output if item.type == "reasoning"]
    thoughts = [part.text for item in reasoned for part in [*item.summary, *(item.content or ())]]
    calls = [item for item in output if is_client(item)]
    known = {"message", "reasoning"}
    opaque = [item.id for item in output if item.type not in known and item not in calls]
    useful = [item for item in reasoned if item.summary or item.content or item.encrypted_content]
    named = [item for item in calls if item.type == "function_call"]
    return Fold(
        snapshot.output_text,
        "".join(thoughts),
        [
            (getattr(item, "call_id", item.id), getattr(item, "name", "") or item.type[: -len("_call")])
            for item in calls
        ],
        [item.arguments for item in named],
        opaque + [item.id for item in useful],
        len(sources(snapshot)),
        (snapshot.incomplete_details and snapshot.incomplete_details.reason) or snapshot.status,
        usage
        and (
            usage.input_tokens,
            usage.output_tokens,
            usage.total_tokens,
            usage.input_tokens_details.cached_tokens,
            usage.output_tokens_details.reasoning_tokens,
        ),
    )


def sources(snapshot: Any) -> list[str]:
    contents = [part for item in snapshot.output if item.type == "message" for part in item.content]
    searches = [item.action for item in snapshot.output if item.type == "web_search_call"]
    cited = [note for part in contents for note in getattr(part, "annotations", None) or ()]
    found = [source for action in searches for source in getattr(action, "sources", None) or ()]
    return [repr(source) for source in [*cited, *found]]


def of_deltas(recording: Recording) -> str:
    frames = SSEDecoder().feed(recording.body)
    said = [msgspec.json.decode(data) for _, data in frames if b'"response.output_text.delta"' in data]
    return "".join(frame["delta"] for frame in said)


RULES: dict[str, tuple[set[str], Callable[[Case], bool]]] = {
    # the SDK's helper raises where ids change from frame to frame, or where a stream is resumed in its middle
    "the SDK fails": (
        set(Fold._fields),
        lambda case: case.snapshot is None and isinstance(case.failure, RuntimeError),
    ),
    "items are known from the stream where the end leaves them out": (
        {"text", "calls", "arguments", "opaque"},
        lambda case: case.snapshot is not None and not case.snapshot.output,
    ),
    "a refusal is text": (
        {"text"},
        lambda case: case.response.finish_reason == "content_filter",
    ),
    "what the deltas said stands": (
        {"text"},
        lambda case: case.response.output_text == of_deltas(case.recording),
    ),
    "a source is added once": (
        {"citations"},
        lambda case: len(set(sources(case.snapshot))) == ours(case.response).citations,
    ),
}


def cases() -> Iterator[Case]:
    return (Case(each, fold(decode(each.body)), *by_sdk(each.body)) for each in recordings("openai-responses"))


def test_every_stream_is_lawful():
    for recording in recordings("openai-responses"):
        try:
            events = decode(recording.body)
            lawful(events)
            apart(events)
        except AssertionError as error:
            raise AssertionError(f"{recording}: {error}") from error


def test_any_cut_gives_the_same_events():
    for recording in recordings("openai-responses"):
        whole, cut_up = (decode(*chunks) for chunks in chunkings(recording.body, cuts=50))
        assert cut_up == whole, recording


def test_byte_by_byte_gives_the_same_events():
    small = [each for each in recordings("openai-responses") if len(each.body) < 12_000]
    assert small
    for recording in small:
        assert decode(*cut(recording.body, *range(len(recording.body)))) == decode(recording.body), recording


def test_raw_adds_one_raw_chunk_per_frame_and_changes_nothing_else():
    for recording in recordings("openai-responses"):
        raw, said = decode(recording.body, raw=True), decode(recording.body)
        assert [each for each in raw if not is_raw(each)] == [each for each in said if not is_raw(each)], recording


def is_raw(event: Event) -> bool:
    return isinstance(event, RawChunk)


def test_no_recorded_frame_is_unknown():
    unknown = Counter(e.kind for each in recordings("openai-responses") for e in decode(each.body) if is_raw(e))
    assert not unknown


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


JUNK: list[Any] = [None, 0, -1, "", "x", "2", True, 1.5, [], [None], [[]], {}, {"type": 5}]


def spoil(held: Any, chance: random.Random) -> Any:
    """`held` with some of what is in it changed or taken out."""
    if chance.random() < 0.04:
        return chance.choice(JUNK)
    match held:
        case dict():
            return {name: spoil(each, chance) for name, each in held.items() if chance.random() > 0.02}
        case list():
            return [spoil(each, chance) for each in held]
        case _:
            return held


def test_spoilt_frames_are_lawful_too():
    chance = random.Random(0)
    for recording in recordings("openai-responses"):
        if len(recording.body) < 20_000 and "parallel-tool-call-wrapper" not in recording.name:
            frames = [data for _, data in SSEDecoder().feed(recording.body) if data != b"[DONE]"]
            for _ in range(3):
                spoilt = [msgspec.json.encode(spoil(msgspec.json.decode(frame), chance)) for frame in frames]
                lawful(decode(b"".join(b"data: %b\n\n" % frame for frame in spoilt)))
