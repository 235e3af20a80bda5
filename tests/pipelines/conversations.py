"""Conversations as hypothesis draws them: lawful ones of whole exchanges, and messages in any order."""

from __future__ import annotations

from hypothesis import strategies as st

from rxllm.values import Image, ImagePart, Message, TextPart, ToolCall, assistant, system, tool_result, user

_texts = st.text(max_size=60) | st.sampled_from(["Hi", "word " * 40, "日本語" * 20, "half \udce9"])
_IMAGE = ImagePart(Image.from_binary(b"GIF89a", "image/gif"))


@st.composite
def exchanges(draw: st.DrawFn, first_id: int = 0) -> list[Message]:
    """A user's message, tool calls with their results, and an answer."""
    text = draw(_texts)
    messages = [user(text) if draw(st.booleans()) else Message("user", (TextPart(text), _IMAGE))]
    for step in range(draw(st.integers(0, 2))):
        ids = [f"c{first_id}.{step}.{i}" for i in range(draw(st.integers(1, 2)))]
        messages.append(Message("assistant", draw(_texts), tool_calls=tuple(ToolCall(id, "look") for id in ids)))
        messages += [tool_result(id, draw(_texts)) for id in draw(st.permutations(ids))]
    return [*messages, assistant(draw(_texts))]


@st.composite
def conversations(draw: st.DrawFn, min_exchanges: int = 0) -> list[Message]:
    """Exchanges, with system messages in any place, and perhaps an assistant's greeting before them."""
    messages = draw(st.lists(st.builds(assistant, _texts), max_size=1))
    for i in range(draw(st.integers(min_exchanges, 5))):
        messages += draw(exchanges(i))
    for _ in range(draw(st.integers(0, 2))):
        messages.insert(draw(st.integers(0, len(messages))), system(draw(_texts)))
    return [*messages, user(draw(_texts))]


_odd = st.sampled_from(
    [
        user("Hi"),
        assistant("Hello"),
        system("Be brief."),
        Message("assistant", tool_calls=(ToolCall("a", "look"),)),
        Message("assistant", tool_calls=(ToolCall("b", "look"), ToolCall("a", "look"))),
        tool_result("a", "1"),
        tool_result("b", "word " * 40),
    ]
)
odd_conversations = st.lists(_odd, min_size=1, max_size=12)
"""Messages in any order: ids come again, results are late, missing or without a call."""
