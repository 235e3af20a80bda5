"""Frames of OpenAI's responses, and what they are decoded to."""

from __future__ import annotations

from typing import Any

import msgspec

from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.collector import StreamCollector
from tests.wire.lawful import lawful


def frame(type: str, *, event: bool = True, **data: Any) -> bytes:
    said = msgspec.json.encode({"type": type, **data})
    return (b"event: %b\n" % type.encode() if event else b"") + b"data: %b\n\n" % said


def response(type: str, **data: Any) -> bytes:
    return frame(f"response.{type}", response={"id": "r1", "model": "m", "status": type, "output": [], **data})


def added(index: int, item: Any) -> bytes:
    return frame("response.output_item.added", output_index=index, item=item)


def begun(index: int, id: str, parts: int = 1) -> bytes:
    """A message with its parts, as OpenAI begins it."""
    empty = {"type": "output_text", "text": "", "annotations": []}
    places = [{"output_index": index, "item_id": id, "content_index": place} for place in range(parts)]
    return added(index, message(id)) + b"".join(
        frame("response.content_part.added", **place, part=empty) for place in places
    )


def done(index: int, item: Any) -> bytes:
    return frame("response.output_item.done", output_index=index, item=item)


def delta(kind: str, index: int, id: str, text: str, **place: int) -> bytes:
    first = {"content_index": 0} if kind == "output_text" else {}
    return frame(f"response.{kind}.delta", output_index=index, item_id=id, delta=text, **{**first, **place})


def message(id: str, *texts: str) -> dict[str, Any]:
    return {"type": "message", "id": id, "content": [{"type": "output_text", "text": text} for text in texts]}


def function(id: str, call_id: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "id": id, "call_id": call_id, "name": "f", "arguments": arguments}


CREATED = response("created")
COMPLETED = response("completed")
HI = begun(0, "m1") + delta("output_text", 0, "m1", "Hi")
HI_DONE = done(0, message("m1", "Hi"))
WHOLE = CREATED + HI + HI_DONE + COMPLETED


def decode(*reads: bytes, **options: Any):
    decoder = ResponsesDecoder(**options)
    events = [event for read in reads for event in decoder.feed(read)]
    return events + decoder.close()


def said(body: bytes, **options: Any):
    """The events but for the last, and the response that they fold to."""
    events = decode(body, **options)
    lawful(events)
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return events[:-1], state.to_response()


def item(type: str, **data: Any) -> dict[str, Any]:
    return {"type": type, "id": "i", **data}


def whole(given: dict[str, Any]) -> bytes:
    return added(0, given) + done(0, given)


CLIENT: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    (item("custom_tool_call", call_id="c", name="f", input='say "hi"'), "f", {"input": 'say "hi"'}),
    (item("computer_call", call_id="c", action={"type": "click", "x": 1}), "computer", {"type": "click", "x": 1}),
    (item("local_shell_call", call_id="c", action={"command": ["ls"]}), "local_shell", {"command": ["ls"]}),
    (item("shell_call", call_id="c", action={"commands": ["ls"]}), "shell", {"commands": ["ls"]}),
    (item("apply_patch_call", call_id="c", operation={"path": "p"}), "apply_patch", {"path": "p"}),
    (item("tool_search_call", arguments={"goal": "g"}, execution="client", call_id="c"), "tool_search", {"goal": "g"}),
]
