"""All operators, and how each is called where its rules are held on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from reactivex import Observable, from_iterable, never, of

import rxllm
from rxllm import operators as ops
from rxllm.events import (
    Event,
    StepCompleted,
    TextDelta,
)
from rxllm.runtime import ToolRecord
from rxllm.values import (
    Message,
    Response,
    Session,
    StepResult,
    Thread,
    ToolCall,
    user,
)

STEP = [StepCompleted(StepResult(Thread(), Response(Message("assistant", "Hi"), "Hi", finish_reason="stop")))]


THREAD = Thread((user("Hi"),))


class Same:
    def feed(self, item: Any) -> list[Any]:
        return [item]

    def close(self) -> list[Any]:
        return []


class Nothing:
    """A journal that notes nothing."""

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        return events

    def tool(self, path: Sequence[str], key: str) -> ToolRecord | None: ...
    async def begin(self, path: Sequence[str], key: str, call: ToolCall) -> None: ...
    async def finish(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None: ...


OPERATORS: dict[str, Callable[[], Any]] = {
    "budget": lambda: ops.budget(tokens=10**6, usd=1.0),
    "circuit_breaker": ops.circuit_breaker,
    "conflate": ops.conflate,
    "continue_with": lambda: ops.continue_with(lambda last: None),
    "cost": lambda: ops.cost("openai:gpt-4o"),
    "errors_as_events": ops.errors_as_events,
    "fallback": lambda: ops.fallback(never()),
    "filter_deltas": lambda: ops.filter_deltas(tool=False),
    "filter_deltas, idle": ops.filter_deltas,
    "finally_result": lambda: ops.finally_result(lambda result, outcome: None),
    "guard": lambda: ops.guard(lambda text: None),
    "gate": lambda: ops.gate(of(True)),
    "hedge": lambda: ops.hedge(1000.0),
    "include_raw_chunks": ops.include_raw_chunks,
    "include_raw_chunks, idle": lambda: ops.include_raw_chunks(True),
    "items": ops.items,
    "journaled": lambda: ops.journaled(Nothing()),
    "keep_latest": ops.keep_latest,
    "lift": lambda: ops.lift(Same),
    "map_async": lambda: ops.map_async(of),
    "map_text": lambda: ops.map_text(str.upper),
    "merge_labelled": lambda: lambda source: rxllm.merge_labelled({"a": source}),
    "only": lambda: ops.only(TextDelta),
    "parsed": lambda: ops.parsed(lambda text: text),
    "partials": lambda: ops.partials(list[dict[str, str]]),
    "race": lambda: ops.race(never()),
    "raise_errors": ops.raise_errors,
    "rate_limited": lambda: ops.rate_limited(concurrent=2),
    "redact": lambda: ops.redact("l+"),
    "repeat_until_halt": lambda: ops.repeat_until_halt(lambda thread: from_iterable(STEP)),
    "restart": ops.restart,
    "retry_before_content": lambda: ops.retry_before_content(False),
    "run_tools": lambda: ops.run_tools(thread=THREAD),
    "scan_collect": lambda: ops.scan_collect(THREAD),
    "sentences": ops.sentences,
    "share_folded": lambda: ops.share_folded(0),
    "smooth": ops.smooth,
    "snapshots": ops.snapshots,
    "stall_warning": lambda: ops.stall_warning(60, print),
    "tap": lambda: ops.tap(lambda item: None),
    "text": ops.text,
    "text_at": lambda: ops.text_at("*", "note"),
    "thinking": ops.thinking,
    "time_limits": lambda: ops.time_limits(first=60, idle=60, total=60),
    "time_limits, idle": ops.time_limits,
    "to_chat_result": lambda: ops.to_chat_result(THREAD),
    "to_response": ops.to_response,
    "to_session": lambda: ops.to_session(Session(thread=THREAD)),
    "to_step_result": lambda: ops.to_step_result(THREAD),
    "to_text": ops.to_text,
    "tool_calls": ops.tool_calls,
    "timed": lambda: ops.timed(),
    "trace": lambda: ops.trace(lambda seen: None),
    "usage": ops.usage,
    "verify": ops.verify,
    "words": ops.words,
}
