"""The judge of bound thinking judges as the provider's pages say."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tests.adapters.anthropic.binding import MODEL, Block, judged, refused, say, signed, think, use

TOOLS = [{"name": "add", "description": "Adds"}, {"name": "sum", "description": "Sums"}]


def conversation() -> Block:
    """Three thoughts: two in an answer with a call, and one behind its result."""
    body: Block = {"model": MODEL, "system": "Be brief.", "tools": TOOLS, "messages": []}
    said: list[Any] = ["Hi", [{"type": "tool_result", "tool_use_id": "c1", "content": "3"}]]
    answers = [[think("one"), say("Well."), think("two"), use("c1")], [think("three"), say("3.")]]
    for content, answer in zip(said, answers, strict=True):
        body["messages"].append({"role": "user", "content": content})
        body["messages"].append({"role": "assistant", "content": signed(body, answer)})
    body["messages"].append({"role": "user", "content": "Bye"})
    return body


def mark(body: Block) -> None:
    body["messages"][1]["content"][1]["cache_control"] = {"type": "ephemeral"}
    body["messages"][0]["content"] = [{**say("Hi"), "cache_control": {"type": "ephemeral"}}]


def answer(body: Block) -> list[Block]:
    return body["messages"][1]["content"]


ALL = [(1, 0), (1, 2), (3, 0)]

EDITS: dict[str, tuple[Any, list[tuple[int, int]]]] = {
    "nothing": (lambda body: None, []),
    "more at the end": (lambda body: body["messages"].append({"role": "system", "content": "Rhyme."}), []),
    "cache marks": (mark, []),
    "the order of the tools": (lambda body: body["tools"].reverse(), []),
    "sampling and effort": (lambda body: body.update(max_tokens=3, output_config={"effort": "low"}), []),
    "the oldest thought": (lambda body: answer(body).pop(0), []),
    "the two oldest thoughts": (lambda body: (answer(body).pop(2), answer(body).pop(0)), []),
    "a text beside the thoughts": (lambda body: answer(body)[1].update(text="So."), [(3, 0)]),
    "a thought between others": (lambda body: answer(body).pop(2), [(3, 0)]),
    "another system": (lambda body: body.update(system="Be long."), ALL),
    "a tool more": (lambda body: body["tools"].append({"name": "div"}), ALL),
    "a tool less": (lambda body: body["tools"].pop(), ALL),
    "another description": (lambda body: body["tools"][0].update(description="Adds!"), ALL),
    "an earlier message": (lambda body: body["messages"][0].update(content="Hello"), ALL),
    "a message between": (lambda body: body["messages"][2]["content"][0].update(content="4"), [(3, 0)]),
    "another text of a thought": (lambda body: answer(body)[0].update(thinking="ONE"), [(1, 0)]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_thought_is_refused_if_what_it_is_bound_to_has_changed(edit: str):
    body = deepcopy(conversation())
    change, expected = EDITS[edit]
    change(body)
    assert refused(body) == expected


def test_a_thought_made_after_a_change_is_valid_with_the_others_left_out():
    body = conversation()
    body["system"] = "Be long."
    for message in body["messages"]:
        if message["role"] == "assistant":
            message["content"] = [block for block in message["content"] if block["type"] != "thinking"]
    body["messages"].append({"role": "assistant", "content": signed(body, [think("four"), say("Bye")])})
    assert judged(body)[0] == []
