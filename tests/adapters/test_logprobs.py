"""Log-probabilities: asked for, they are in the response's metadata, in order, on every wire that has them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm import Gemini, MessageCompleted, Ollama, OpenAIChat, OpenAIResponses, Request, Response, user
from rxllm.adapters.gemini.decoder import GeminiDecoder
from rxllm.adapters.ollama.decoder import OllamaDecoder
from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.collector import StreamCollector
from rxllm.events import Event
from rxllm.values import Call
from tests.corpus import Recording, recordings
from tests.wire.lawful import lawful


def token(text: str, logprob: float = -0.5, **more: Any) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, **more}


def sse(*frames: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(each) for each in frames)


def choice(delta: Any, logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
    return {"id": "r", "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}


def candidate(text: str, result: Any = None, **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [{"text": text}]}, "logprobsResult": result, **more}]}


def decode(decoder: Any, body: bytes, cuts: list[int] | None = None) -> list[Event]:
    pieces = [body[a:b] for a, b in pairwise([0, *(cuts or []), len(body)])]
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    lawful(events)
    return events


def fold(events: list[Event]) -> Response[Any]:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_response()


CHAT = sse(
    choice({"reasoning_content": "hm"}, {"reasoning_content": [token("hm")]}),
    choice({"content": "Hi"}, {"content": [token("H"), token("i", top_logprobs=[token("o", -2.0)])], "refusal": None}),
    choice({"content": "!"}, {"content": [token("!")]}),
    choice({}, None, "stop"),
)
SAID = [token("H"), token("i", top_logprobs=[token("o", -2.0)]), token("!")]


def item(*tokens: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": "Hi!", "annotations": [], "logprobs": list(tokens)}
    return {"type": "message", "id": "m1", "role": "assistant", "content": [part]}


RESPONSES = sse(
    {"type": "response.created", "response": {"id": "r"}},
    {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "m1", "content": []}},
    {"type": "response.output_text.delta", "item_id": "m1", "delta": "Hi", "logprobs": SAID[:2]},
    {"type": "response.output_text.delta", "item_id": "m1", "delta": "!", "logprobs": SAID[2:]},
    {"type": "response.output_text.done", "item_id": "m1", "text": "Hi!", "logprobs": SAID},
    {"type": "response.output_item.done", "output_index": 0, "item": item(*SAID)},
    {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [item(*SAID)]}},
)
GEMINI = sse(
    candidate(
        "Hi",
        {
            "chosenCandidates": [
                {"token": "H", "tokenId": 7, "logProbability": -0.5},
                {"token": "i", "logProbability": -0.5},
            ],
            "topCandidates": [{"candidates": [{"token": "H", "logProbability": -0.5}]}],
        },
    ),
    candidate(
        "!", {"chosenCandidates": [{"token": "!", "logProbability": -0.25}]}, finishReason="STOP", avgLogprobs=-0.4
    ),
)
OLLAMA = b"\n".join(
    map(
        msgspec.json.encode,
        [
            {"message": {"thinking": "hm"}, "logprobs": [token("hm")]},
            {"message": {"content": "Hi"}, "logprobs": SAID[:2]},
            {"message": {"content": "!"}, "logprobs": SAID[2:]},
            {"message": {"content": ""}, "done": True, "done_reason": "stop"},
        ],
    )
)

WIRES: dict[str, tuple[Any, bytes, dict[str, Any]]] = {
    "chat": (ChatDecoder, CHAT, {"logprobs": SAID, "reasoning_logprobs": [token("hm")]}),
    "responses": (ResponsesDecoder, RESPONSES, {"logprobs": SAID}),
    "gemini": (
        GeminiDecoder,
        GEMINI,
        {
            "logprobs": [
                token("H", token_id=7, top_logprobs=[token("H")]),
                token("i", top_logprobs=[]),
                token("!", -0.25, top_logprobs=[]),
            ],
            "avg_logprobs": -0.4,
        },
    ),
    "ollama": (OllamaDecoder, OLLAMA, {"logprobs": SAID, "reasoning_logprobs": [token("hm")]}),
}

every_wire = pytest.mark.parametrize(("decoder", "body", "told"), WIRES.values(), ids=WIRES)


@every_wire
def test_they_are_in_the_responses_metadata_in_order(decoder: Any, body: bytes, told: Any) -> None:
    events = decode(decoder(), body)
    assert isinstance(events[-1], MessageCompleted)
    assert events[-1].metadata == told
    response = fold(events)
    assert (response.output_text, response.metadata) == ("Hi!", told)


@given(st.data())
def test_no_cut_changes_them(data: st.DataObject) -> None:
    decoder, body, _ = data.draw(st.sampled_from(list(WIRES.values())))
    cuts = data.draw(st.lists(st.integers(1, len(body)), max_size=6).map(sorted))
    assert decode(decoder(), body, cuts) == decode(decoder(), body)


def test_the_tokens_of_a_refusal_are_of_the_text() -> None:
    body = sse(choice({"refusal": "No."}, {"content": None, "refusal": [token("No.")]}), choice({}, None, "stop"))
    assert fold(decode(ChatDecoder(), body)).metadata == {"logprobs": [token("No.")]}


def test_the_older_form_of_completions_is_put_into_the_newer_one() -> None:
    older = {"tokens": ["H", "i"], "token_logprobs": [-0.5, None], "top_logprobs": None, "text_offset": [0, 1]}
    body = sse(choice({"content": "Hi"}, older), choice({}, None, "stop"))
    assert fold(decode(ChatDecoder(), body)).metadata == {"logprobs": [token("H"), {"token": "i", "logprob": None}]}


@pytest.mark.parametrize("odd", [[], "none", 3, {"content": "H"}, {"tokens": None, "token_logprobs": None}])
def test_what_is_none_of_these_costs_no_text(odd: Any) -> None:
    body = sse(choice({"content": "Hi"}, odd), choice({}, None, "stop"))
    response = fold(decode(ChatDecoder(), body))
    assert (response.output_text, response.metadata) == ("Hi", {})
    body = sse(candidate("Hi", odd, finishReason="STOP"))
    response = fold(decode(GeminiDecoder(), body))
    assert (response.output_text, response.metadata.get("logprobs", [])) == ("Hi", [])
    line = msgspec.json.encode({"message": {"content": "Hi"}, "logprobs": odd, "done": True})
    assert fold(decode(OllamaDecoder(), line)).output_text == "Hi"


def test_options_ask_for_them() -> None:
    def body(adapter: Any, **options: Any) -> Any:
        return msgspec.json.decode(adapter.build(Request((user("Hi"),), model="m", options=options), Call()).content)

    assert body(OpenAIChat(api_key="k" * 9), logprobs=True, top_logprobs=2)["top_logprobs"] == 2
    assert body(OpenAIResponses(api_key="k" * 9), include=["message.output_text.logprobs"])["include"]
    asked = body(Gemini(api_key="k" * 9), generationConfig={"responseLogprobs": True, "logprobs": 2})
    assert asked["generationConfig"] == {"responseLogprobs": True, "logprobs": 2}
    assert body(Ollama(), logprobs=True)["logprobs"] is True


def _counted(recording: Recording) -> int:
    """The entries that the bytes of a recording hold for the text, counted without the decoder."""
    frames = [msgspec.json.decode(line[6:]) for line in recording.body.splitlines() if line.startswith(b"data: {")]
    if recording.api == "openai-responses":
        return sum(len(each.get("logprobs") or ()) for each in frames if str(each.get("type")).endswith("text.delta"))
    held = [choice.get("logprobs") or {} for each in frames for choice in each.get("choices") or ()]
    return sum(len(each.get(name) or ()) for each in held for name in ("content", "refusal"))


@pytest.mark.parametrize(
    ("api", "decoder", "least"), [("openai-chat", ChatDecoder, 4), ("openai-responses", ResponsesDecoder, 3)]
)
def test_recorded_ones_are_all_kept(api: str, decoder: Any, least: int) -> None:
    with_some = 0
    for recording in recordings(api):
        if b'"logprob"' in recording.body:
            count = _counted(recording)
            with_some += bool(count)
            metadata = fold(decode(decoder(provider=recording.provider), recording.body)).metadata
            assert len(metadata.get("logprobs", ())) == count, recording.name
    assert with_some >= least
