"""Faults that are planted in operators, and the rule that finds each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from rxllm import Anthropic
from rxllm.events import MessageCompleted, TextDelta, ToolCallCompleted, UsageUpdated
from rxllm.testing import ADAPTER_RULES, Script
from rxllm.values import Call, ImagePart, Request
from tests.testing.wires import AnthropicWire, sse

SIGNATURE = "c2lnbmF0dXJl/Zm9yIHRoZSB0aG91Z2h0"


class Outsiders(Anthropic):
    """A sound adapter; `spoil` changes a request before it is built, and `spoil_body` its body."""

    def spoil(self, request: Request) -> Request:
        return request

    def spoil_body(self, body: dict[str, Any]) -> dict[str, Any]:
        return body

    def build(self, request: Request, call: Call) -> Any:
        built = super().build(self.spoil(request), call)
        body = self.spoil_body(msgspec.json.decode(built.read()))
        headers = {name: text for name, text in built.headers.items() if name not in ("content-length", "host")}
        return self._clients.any().build_request(
            "POST", built.url, headers=headers, content=msgspec.json.encode(body), extensions=built.extensions
        )


class Spoilt:
    """A decoder whose events, or whose bytes, go through a function."""

    def __init__(self, sound: Any, events: Callable[[list[Any]], list[Any]], reads: Callable[[bytes], bytes]) -> None:
        self._sound, self._events, self._reads = sound, events, reads

    def feed(self, data: bytes) -> list[Any]:
        return self._events(list(self._sound.feed(self._reads(data))))

    def close(self) -> list[Any]:
        return self._events(list(self._sound.close()))


def requesting(**changes: Any) -> type[Outsiders]:
    """Loses options of the request."""

    class Adapter(Outsiders):
        def spoil(self, request: Request) -> Request:
            return replace(request, **changes)

    return Adapter


def sending(pattern: str, text: str) -> type[Outsiders]:
    """Sends another body."""

    class Adapter(Outsiders):
        def spoil_body(self, body: dict[str, Any]) -> dict[str, Any]:
            return msgspec.json.decode(re.sub(pattern, text, msgspec.json.encode(body).decode()))

    return Adapter


def telling(
    events: Callable[[list[Any]], list[Any]] = lambda events: events,
    reads: Callable[[bytes], bytes] = lambda data: data,
) -> type[Outsiders]:
    """Reads or tells something else."""

    class Adapter(Outsiders):
        def decoder(self, request: Request, *, raw: bool = False) -> Any:
            return Spoilt(super().decoder(request, raw=raw), events, reads)

    return Adapter


def without_parts(kind: type[Any]) -> type[Outsiders]:
    class Adapter(Outsiders):
        def spoil(self, request: Request) -> Request:
            def changed(message: Any) -> Any:
                if isinstance(message.content, str):
                    return message
                return replace(message, content=tuple(part for part in message.parts if not isinstance(part, kind)))

            return replace(request, messages=tuple(map(changed, request.messages)))

    return Adapter


class KeyInUrl(Outsiders):
    def build(self, request: Request, call: Call) -> Any:
        built = super().build(request, call)
        built.url = built.url.copy_merge_params({"key": self.key(call) or ""})
        return built


class Blocking(Outsiders):
    def build(self, request: Request, call: Call) -> Any:
        time.sleep(0.2)
        return super().build(request, call)


class Timeless(Outsiders):
    def build(self, request: Request, call: Call) -> Any:
        return super().build(request, replace(call, timeout=None))


def deaf(data: bytes) -> bytes:
    """Trusts that each frame has what it should have."""
    for line in data.splitlines():
        if line.startswith(b"data: "):
            frame = msgspec.json.decode(line[6:])
            if frame["type"] == "content_block_delta":
                cast("dict[str, Any]", frame["delta"]).keys()
    return data


def dropping(kind: type[Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda events: [event for event in events if not isinstance(event, kind)]


def renamed(events: list[Any]) -> list[Any]:
    return [
        msgspec.structs.replace(event, name="other") if isinstance(event, ToolCallCompleted) else event
        for event in events
    ]


def as_stopped(events: list[Any]) -> list[Any]:
    return [
        msgspec.structs.replace(event, finish_reason="stop") if isinstance(event, MessageCompleted) else event
        for event in events
    ]


FAULTS: dict[str, type[Outsiders]] = {
    "the key is in the URL": KeyInUrl,
    "build blocks": Blocking,
    "drops max_tokens": sending(r'"max_tokens":4321', '"max_tokens":4096'),
    "drops stop": requesting(stop=()),
    "drops tool_choice": requesting(tool_choice=None),
    "drops response_format": requesting(response_format=None),
    "drops the ids of results": sending(r'"tool_use_id":"[^"]*"', '"tool_use_id":""'),
    "drops signatures": sending(re.escape(SIGNATURE), ""),
    "drops pictures": without_parts(ImagePart),
    "drops the system prompt": sending("canary_system", ""),
    "drops temperature": requesting(temperature=None),
    "drops the timeout": Timeless,
    "raises at a malformed frame": telling(reads=deaf),
    "loses a delta": telling(lambda events: [event for event in events if event != TextDelta("three ", "block_1")]),
    "loses the usage": telling(dropping(UsageUpdated)),
    "renames a tool": telling(renamed),
    "tells every end as stop": telling(as_stopped),
}
"""Seventeen faults of an adapter."""


class Wire(AnthropicWire):
    """The wire, with a signature for its thoughts."""

    __test__ = False
    seconds = 5.0
    kind: type[Outsiders] = Outsiders

    def adapter(self, url: str, **connection: Any) -> Any:
        return self.kind(base_url=url, **connection)

    def said(self, script: Script) -> list[bytes]:
        signed = sse(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "signature_delta", "signature": SIGNATURE},
            },
            "content_block_delta",
        )
        frames = super().said(script)
        last = max((place for place, frame in enumerate(frames) if b"thinking_delta" in frame), default=None)
        return frames if last is None else [*frames[: last + 1], signed, *frames[last + 1 :]]


CASES = (
    "test_usage_arrives",
    "test_text_comes_in_its_pieces",
    "test_calls_are_whole",
    "test_an_answer_is_the_fold_of_its_stream",
    "test_a_malformed_frame_of_its_own_raises_nothing",
    "test_what_the_provider_signs_goes_back_to_it",
    "test_build_sends_nothing_and_passes_the_timeout_on",
)
"""The suite's cases that look at what an adapter makes of one whole answer."""


def found(kind: type[Outsiders]) -> list[str]:
    """The rules and cases of the kit that fail for the adapter."""
    suite = type("Suite", (Wire,), {"kind": kind})()
    failed: list[str] = []
    cases = [(case, getattr(suite, case, None), ()) for case in CASES]
    rules = [(rule, suite.test_it_keeps_the_rule, (rule,)) for rule in ADAPTER_RULES]
    lengths = [("length", suite.test_a_finish_reason_arrives, ("length",))]
    for name, case, args in [*rules, *lengths, *cases]:
        try:
            if case is not None:
                case(*args)
        except Exception:
            failed.append(name)
        except pytest.skip.Exception:
            pass
    return failed
