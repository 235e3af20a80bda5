"""The chunks themselves."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from rxllm import ValidationError, chunks
from rxllm.chunks import StreamChunk
from rxllm.values import FilePart


def test_the_builders_make_the_kinds_of_chunks() -> None:
    assert chunks.text("Hi") == StreamChunk("content", text="Hi")
    assert chunks.thinking("Hm") == StreamChunk("thinking", text="Hm")
    call = chunks.tool_call("add", {"a": 1}, {"id": "c1"})
    assert call == StreamChunk("tool_call", name="add", arguments={"a": 1}, metadata={"id": "c1"})
    assert chunks.meta({"usage": {}}) == StreamChunk("meta", metadata={"usage": {}})
    assert chunks.content_part(FilePart({})) == StreamChunk("content_part", content_part=FilePart({}))


@pytest.mark.parametrize("make", [chunks.text, chunks.thinking])
@pytest.mark.parametrize("value", [3, None, {"a": 1}, b"Hi"])
def test_text_is_a_string(make: Any, value: Any) -> None:
    with pytest.raises(ValidationError, match="text must be a string, not") as caught:
        make(value)
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_message", ("text",))


def test_a_chunk_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        chunks.text("Hi").text = "Ho"  # type: ignore[misc]


def test_chunks_do_not_share_their_metadata() -> None:
    one, other = chunks.tool_call("add"), chunks.tool_call("add")
    one.metadata["id"] = "c1"  # type: ignore[index]
    assert not other.metadata
    assert not chunks.tool_call("add").metadata


def test_the_repr_cuts_text_at_twenty_characters() -> None:
    assert repr(chunks.text("a" * 20)) == f"StreamChunk(content, text={'a' * 20!r})"
    assert repr(chunks.text("a" * 21)) == f"StreamChunk(content, text={'a' * 20 + '…'!r})"
    assert repr(chunks.meta({"finish_reason": "stop"})) == "StreamChunk(meta, metadata={'finish_reason': 'stop'})"


@pytest.mark.parametrize(
    "chunk",
    [
        chunks.text(""),
        chunks.text("Hi", {"index": 1}),
        chunks.thinking("Hm", {"signature": "s"}),
        chunks.tool_call("add"),
        chunks.tool_call("add", {"a": 1}),
        chunks.tool_call("add", '{"a"'),
        chunks.meta({}),
        chunks.content_part(FilePart({})),
    ],
)
def test_valid_chunks(chunk: StreamChunk) -> None:
    assert chunks.validate(chunk) is chunk


@pytest.mark.parametrize(
    ("chunk", "field"),
    [
        (StreamChunk("content"), "text"),
        (StreamChunk("thinking", text=3), "text"),  # type: ignore[arg-type]
        (StreamChunk("tool_call"), "name"),
        (StreamChunk("tool_call", name=""), "name"),
        (StreamChunk("tool_call", name="add", arguments=3), "arguments"),
        (StreamChunk("meta", metadata=None), "metadata"),  # type: ignore[arg-type]
        (StreamChunk("content", text="Hi", metadata=None), "metadata"),  # type: ignore[arg-type]
        (StreamChunk("content_part", content_part="x"), "content_part"),
        (StreamChunk("sound"), "type"),
        (StreamChunk(None), "type"),  # type: ignore[arg-type]
    ],
)
def test_invalid_chunks_name_the_field(chunk: StreamChunk, field: str) -> None:
    with pytest.raises(ValidationError) as raised:
        chunks.validate(chunk)
    assert raised.value.reason == "invalid_message"
    assert [path for path, _ in raised.value.errors] == [(field,)]


def test_a_mapping_of_its_fields_is_a_chunk() -> None:
    assert chunks.validate({"type": "content", "text": "Hi"}) == chunks.text("Hi")


def test_what_is_no_chunk_is_invalid() -> None:
    nothing: Any = {"content": "Hi"}
    with pytest.raises(ValidationError, match="is not a StreamChunk; use chunks"):
        chunks.validate(nothing)


@pytest.mark.parametrize(
    "chunk", [chunks.text("Hi"), chunks.tool_call("add", {"a": [1, None]}, {"id": "c1"}), chunks.meta({"usage": {}})]
)
def test_chunks_are_json_and_pickle(chunk: StreamChunk) -> None:
    assert msgspec.json.decode(msgspec.json.encode(chunk), type=StreamChunk) == chunk
    assert pickle.loads(pickle.dumps(chunk)) == chunk
