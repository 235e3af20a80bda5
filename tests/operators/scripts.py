"""Texts in several scripts, in any pieces: recorded ones, where those are at hand, and made-up ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from hypothesis import strategies as st
from reactivex import Observable, from_iterable

from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.events import Event, MessageCompleted, MessageStarted, TextCompleted, TextDelta
from rxllm.testing.event_checks import played
from rxllm.values import Message
from tests.corpus import recordings

TEXTS = (
    "Hello, world. How are you?\n\n1. First item. Second.\n2. Other\n  x",
    'Mr. Smith went, e.g., to U.S. soil! "Really?" she said. "Yes." He left... Then (so it was.) They slept.',
    "你好。他说\uff1a“走吧\uff01”然后走了。Hello 世界 abc漢字 ok。日本語が゚か\u3099です。",
    "مرحبا بك. كيف حالك؟ أنا بخير. الرقم 12. والسلام",
    "สวัสดีครับ ทุกคน กำลัง ภาษาไทย",
    "👩‍👩‍👧 family 🇩🇪🇫🇷 e\u0301te\u0301. 👍🏽 漢\U000e0100字 Ok! ",
    "   \n\n  ",
    "foo" + " " * 60 + "12. The next. " + "\n" + " " * 90 + "x" + "。" * 7 + "」" * 6 + " a",
)

_BITS = [
    *"aZ 1.,!?\n)\"'",
    "。",
    "\uff01",
    "」",
    "漢",
    "ก",
    "ำ",
    "\u0301",
    "\u200d",
    "👍",
    "Dr.",
    "e.g.",
    "؟",
    "  ",
    "É",
]
_made = st.lists(st.sampled_from(_BITS), max_size=40).map("".join)


@cache
def recorded() -> tuple[str, ...]:
    """What real models said: some of the texts, not too long. Skips where there are no recordings."""
    texts: set[str] = set()
    for recording in recordings("openai-chat"):
        decoder = ChatDecoder()
        said = [*decoder.feed(recording.body), *decoder.close()]
        texts |= {event.text for event in said if isinstance(event, TextCompleted)}
    odd = sorted((text for text in texts if not text.isascii()), key=lambda text: (len(text), text))
    plain = sorted((text for text in texts if text.isascii()), key=lambda text: (len(text), text))
    return tuple(text[:1500] for text in (*odd[::5], *plain[::12]) if text)


def texts() -> st.SearchStrategy[str]:
    return st.sampled_from(TEXTS) | _made


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """`text` in pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=min(len(text), 60))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def said(pieces: Iterable[str]) -> list[Event]:
    """The events of a response whose text comes in `pieces`."""
    given = list(pieces)
    text = "".join(given)
    return [
        MessageStarted(Message("assistant")),
        *(TextDelta(piece) for piece in given),
        TextCompleted(text),
        MessageCompleted(Message("assistant", text), "stop"),
    ]


def through(operator: Callable[[Observable[Any]], Observable[Any]], events: Iterable[Any]) -> list[Any]:
    """What `operator` makes of `events`, in virtual time."""
    return played(from_iterable(list(events)).pipe(operator))
