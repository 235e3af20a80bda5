"""Bodies with something odd in them: one field, one line, or some bytes are not what a provider should send."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from rxllm import Request
from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses
from rxllm.events import Event
from rxllm.http import Decoder
from tests.adapters import streams

ODD = (
    *("null", "true", "0", "-1", "7", "1.5", "1e999", "NaN", "-Infinity", "1" * 30, "1" * 5000),
    *('""', '"x"', '"7"', r'"\ud83d"', r'"\ude00"', r'"a\ud83d\ude00\ud83d"', r'"\u0000"', '"http://[x"', '"4\u0663"'),
    *("[]", "[null]", '["x"]', "[7]", "[[]]", "[{}]", "{}", '{"$": "x"}', '{"x": [{"y": null}]}', '{"\\ud83d": 1}'),
    *('"error"', '"stop"', '"1.2.3s"', "[" * 500 + "]" * 500, "[" * 2000 + "]" * 2000, '"' + "x" * 3000 + '"'),
)
"""JSON texts that stand in for a value of any type."""

JUNK = (b"\xff", b"\xed\xa0\xbd", b"\x00", b"\n", b"\n\n", b"\r", b'"', b"}", b"[", b"data: [DONE]\n\n", b"error: {}\n")


_MUTATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("value"), st.integers(0, 9999), st.sampled_from(ODD)),
        st.tuples(st.just("value"), st.integers(0, 9999), st.sampled_from(ODD)),
        st.tuples(st.just("left out"), st.integers(0, 9999), st.none()),
        st.tuples(st.sampled_from(["twice", "lost", "swapped"]), st.integers(0, 9999), st.none()),
        st.tuples(st.sampled_from(["junk", "cut"]), st.integers(0, 9999), st.sampled_from(JUNK)),
    ),
    min_size=1,
    max_size=3,
)
_PLACES = st.integers(0, 9999)


def mutants(bodies: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of `bodies` with one to three mutations."""
    return st.tuples(st.sampled_from(bodies), _MUTATIONS).map(lambda drawn: _mutated(*drawn))


def mutant(data: st.DataObject, bodies: Sequence[bytes]) -> bytes:
    """Draw one of `bodies` with one to three mutations: to make a strategy for each example costs more than to draw."""
    return _mutated(bodies[data.draw(_PLACES) % len(bodies)], data.draw(_MUTATIONS))


def _mutated(body: bytes, mutations: list[tuple[str, int, Any]]) -> bytes:
    for kind, number, odd in mutations:
        lines = body.split(b"\n")
        at = number % len(lines)
        match kind:
            case "value" | "left out":
                lines = _with_odd_value(lines, number, odd)
            case "twice":
                lines[at:at] = [lines[at]]
            case "lost":
                del lines[at]
            case "swapped":
                lines[at], lines[at - 1] = lines[at - 1], lines[at]
            case _:
                place = number * 7919 % (len(body) + 1)
                lines = [body[:place] + (odd + body[place:] if kind == "junk" else b"")]
        body = b"\n".join(lines)
    return body


def _with_odd_value(lines: list[bytes], number: int, odd: str | None) -> list[bytes]:
    found = [(i, line.index(b"{")) for i, line in enumerate(lines) if line.removeprefix(b"data: ")[:1] == b"{"]
    if not found:
        return lines
    at, start = found[number % len(found)]
    head, text = lines[at][:start], lines[at][start:]
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return lines
    places = list(_places(data))
    if not places:
        return lines
    inside, key = places[number // len(found) % len(places)]
    if odd is None:
        del inside[key]
    else:
        inside[key] = "@odd@"
    written = json.dumps(data, separators=(",", ":")).replace('"@odd@"', odd or "")
    return [*lines[:at], head + written.encode(), *lines[at + 1 :]]


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Where a value is: what it is in, and under which name or number."""
    left = [data]
    while left:  # a mutation may be nested more deeply than Python recurses
        inside = left.pop()
        for key, item in list(inside.items() if isinstance(inside, dict) else enumerate(inside)):
            yield inside, key
            if isinstance(item, dict | list):
                left.append(item)


Make = Callable[[bool], Decoder]


DECODERS: dict[str, tuple[Make, Sequence[bytes]]] = {
    "openai-chat": (lambda raw: OpenAIChat().decoder(Request(), raw=raw), streams.CHAT),
    "openai-completions": (lambda raw: OpenAIChat().decoder(Request(), raw=raw), streams.COMPLETIONS),
    "openai-responses": (lambda raw: OpenAIResponses().decoder(Request(), raw=raw), streams.RESPONSES),
    "anthropic-messages": (lambda raw: Anthropic().decoder(Request(), raw=raw), streams.ANTHROPIC),
    "gemini": (lambda raw: Gemini().decoder(Request(), raw=raw), streams.GEMINI),
    "ollama-chat": (lambda raw: Ollama().decoder(Request(), raw=raw), streams.OLLAMA),
}


def decode(make: Make, raw: bool, *reads: bytes) -> list[Event]:
    decoder = make(raw)
    return [event for read in reads for event in decoder.feed(read)] + decoder.close()
