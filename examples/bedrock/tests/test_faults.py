"""Faults planted into a copy of the adapter: the test kit must find at least 14 of the 17."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from botocore.eventstream import EventStreamBuffer
from rxllm.events import MessageCompleted, ToolCallCompleted, UsageUpdated
from rxllm.testing import ADAPTER_RULES
from rxllm.values import Call, ImagePart, Request
from wire import SIGNATURE, ConverseWire

from rxllm_bedrock import Bedrock


class Spoilt(Bedrock):
    """An adapter with one fault: in the request, in its body, in the bytes that it reads, or in its events."""

    def spoil(self, request: Request) -> Request:
        return request

    def spoil_body(self, body: str) -> str:
        return body

    def spoil_events(self, events: list[Any]) -> list[Any]:
        return events

    def spoil_read(self, data: bytes) -> None:
        pass

    def build(self, request: Request, call: Call) -> Any:
        return super().build(self.spoil(request), call)

    def post(self, path: str, body: Any, call: Call, **more: Any) -> Any:
        return super().post(path, json.loads(self.spoil_body(json.dumps(body))), call, **more)

    def decoder(self, request: Request, *, raw: bool = False) -> Any:
        sound = super().decoder(request, raw=raw)
        read, spoil = sound.feed, self.spoil_events

        def feed(data: bytes) -> list[Any]:
            self.spoil_read(data)
            return spoil(read(data))

        close = sound.close
        sound.feed, sound.close = feed, lambda: spoil(close())
        return sound


def requesting(change: Callable[[Request], Request]) -> type[Spoilt]:
    return type("Fault", (Spoilt,), {"spoil": lambda self, request: change(request)})


def forgetting(**fields: Any) -> type[Spoilt]:
    return requesting(lambda request: replace(request, **fields))


def sending(pattern: str, text: str) -> type[Spoilt]:
    return type("Fault", (Spoilt,), {"spoil_body": lambda self, body: re.sub(pattern, text, body)})


def emitting(change: Callable[[Any], Any]) -> type[Spoilt]:
    def spoil_events(self: Any, events: list[Any]) -> list[Any]:
        return [changed for event in events if (changed := change(event)) is not None]

    return type("Fault", (Spoilt,), {"spoil_events": spoil_events})


def changing(kind: type[Any], **fields: Any) -> type[Spoilt]:
    return emitting(lambda event: msgspec.structs.replace(event, **fields) if isinstance(event, kind) else event)


def without_pictures(request: Request) -> Request:
    def changed(message: Any) -> Any:
        if not isinstance(message.content, tuple):
            return message
        return replace(message, content=tuple(part for part in message.content if not isinstance(part, ImagePart)))

    return replace(request, messages=tuple(map(changed, request.messages)))


class KeyInUrl(Spoilt):
    def build(self, request: Request, call: Call) -> Any:
        built = super().build(request, call)
        built.url = built.url.copy_merge_params({"key": self.key(call) or ""})
        return built


class Blocking(Spoilt):
    def build(self, request: Request, call: Call) -> Any:
        time.sleep(0.2)
        return super().build(request, call)


class Timeless(Spoilt):
    def build(self, request: Request, call: Call) -> Any:
        return super().build(request, replace(call, timeout=None))


class Trusting(Spoilt):
    """It trusts that all checksums are right."""

    def spoil_read(self, data: bytes) -> None:
        buffer = EventStreamBuffer()
        buffer.add_data(data)
        list(buffer)


FAULTS: dict[str, type[Spoilt]] = {
    "the key is in the URL": KeyInUrl,
    "build blocks": Blocking,
    "drops max_tokens": forgetting(max_tokens=None),
    "drops stop": forgetting(stop=()),
    "drops tool_choice": forgetting(tool_choice=None),
    "drops response_format": forgetting(response_format=None),
    "drops the ids of results": sending(r'("toolResult": {"toolUseId": )"[^"]*"', r'\1"x"'),
    "drops signatures": sending(re.escape(SIGNATURE), ""),
    "drops pictures": requesting(without_pictures),
    "drops the system prompt": sending("canary_system", ""),
    "drops temperature": forgetting(temperature=None),
    "drops the timeout": Timeless,
    "raises at a malformed frame": Trusting,
    "loses a delta": emitting(lambda event: None if getattr(event, "delta", "") == "three " else event),
    "loses the usage": emitting(lambda event: None if isinstance(event, UsageUpdated) else event),
    "renames a tool": changing(ToolCallCompleted, name="other"),
    "reports every end as stop": changing(MessageCompleted, finish_reason="stop"),
}

CASES = (
    "test_usage_arrives",
    "test_text_comes_in_its_pieces",
    "test_calls_are_whole",
    "test_an_answer_is_the_fold_of_its_stream",
    "test_a_malformed_frame_of_its_own_raises_nothing",
    "test_what_the_provider_signs_goes_back_to_it",
    "test_build_sends_nothing_and_passes_the_timeout_on",
)


def find(kind: type[Bedrock]) -> Iterator[str]:
    """Yield the names of the rules and cases that fail for the adapter `kind`."""

    class Suite(ConverseWire):
        seconds = 5.0

        def adapter(self, url: str, **connection: Any) -> Any:
            return kind(base_url=url, **connection)

    suite = Suite()
    cases = [(case, getattr(suite, case), ()) for case in CASES]
    rules = [(rule, suite.test_it_keeps_the_rule, (rule,)) for rule in ADAPTER_RULES]
    for name, case, arguments in [*cases, ("length", suite.test_a_finish_reason_arrives, ("length",)), *rules]:
        try:
            case(*arguments)
        except pytest.skip.Exception:
            pass
        except Exception:
            yield name


def test_the_adapter_has_none_of_them() -> None:
    assert list(find(Spoilt)) == []


def test_most_faults_are_found() -> None:
    missed = [fault for fault, kind in FAULTS.items() if next(find(kind), None) is None]
    assert len(FAULTS) == 17
    assert len(missed) <= 3, missed
