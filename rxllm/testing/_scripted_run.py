"""What the suites of adapters have in common: the hooks of their subclasses, and the calls that their cases make."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from typing import Any, ClassVar, NoReturn

import pytest
from reactivex import Observable

from rxllm import operators as ops
from rxllm.adapters import as_adapter
from rxllm.collector import StreamCollector
from rxllm.engine import Engine
from rxllm.events import ErrorEvent, Event
from rxllm.pipelines import generate, stream_generate
from rxllm.runtime import Stream
from rxllm.testing._observe import SECONDS, Told, becomes, hear
from rxllm.testing._rule_table import chosen, clip, expect
from rxllm.testing._script import REQUEST_ID, Script, Served
from rxllm.testing._sent_rules import SENT_RULES
from rxllm.values import AdapterError, Call, LLMError, Request, Response, Tool, ToolCall, Usage, user

TEXTS = ("Two, ", "three ", "and five.")
CALLS = (ToolCall("call_a", "f", {"x": 1}), ToolCall("call_b", "f", {"x": 2}))
TOOL = Tool("f", "A tool.", {"type": "object", "properties": {"x": {"type": "integer"}}})
THOUGHTS = ("Let me ", "see.")
USAGE = Usage(11, 7)
RETRY_AFTER = 0.5

REASONS = (
    "authentication_failed",
    "rate_limited",
    "timeout",
    "network_error",
    "invalid_request",
    "context_length_exceeded",
    "content_filter",
    "provider_unavailable",
    "malformed_response",
    "unsupported_feature",
    "unknown",
)

SCRIPT_RULES = ("calls", "thinking", "usage", "length", "content_filter", "cancelled")
"""What a suite's `without` may name, besides `SENT_RULES`."""


class AdapterSuite:
    """The hooks of ``AdapterConformance``, whose docstring says them, and what its cases share."""

    model: ClassVar[str] = "conformance"
    reasons: ClassVar[Collection[str]] = REASONS
    breaks: ClassVar[str] = "rate_limited"
    without: ClassVar[Mapping[str, str]] = {}
    silence: float = 1.0
    patience: float = 0.5
    seconds: float = SECONDS

    def serving(self, script: Script) -> AbstractContextManager[Served]:
        """An adapter whose service answers each call as `script` says.

        A refusal has the request id `REQUEST_ID`, and asks to wait for as long as the script's error does.
        """
        missing(self, "serving")

    asking: ClassVar[str] = "Call f, twice."

    def engine(self, served: Served) -> Engine:
        """The adapter, with no retries."""
        return Engine(served.adapter, model=self.model, retry=False)

    @property
    def request(self) -> Request:
        """What a call is asked, as an adapter sees it."""
        return Request((user(self.asking),), model=self.model, tools=(TOOL,))

    def bare(self, served: Served) -> Stream[Event]:
        """What the adapter itself gives, with nothing around it."""
        return Stream.of(as_adapter(served.adapter).stream(self.request, Call(request_id="r")))

    def hear(self, source: Observable[Any], **how: Any) -> Told:
        """All that `source` says until it ends."""
        return hear(source, seconds=self.seconds, **how)

    def answer(self, served: Served, **options: Any) -> Response[Any]:
        """The response of one call that does not fail."""
        __tracebackhide__ = True
        told = self.hear(generate(self.engine(served), self.asking, tools=[TOOL], **options))
        response = unfailing(told)[-1]
        expect(response.error is None, f"the answer broke off: {response.error!r}", response.error)
        return response

    def stream(self, served: Served, request: Any = asking, **options: Any) -> Stream[Event]:
        """The stream of one call, held to the rules of ``operators.verify``."""
        return stream_generate(self.engine(served), request, tools=[TOOL], **options).pipe(ops.verify())

    def events(self, served: Served, request: Any = asking, **options: Any) -> list[Event]:
        """The events of one call that does not fail."""
        __tracebackhide__ = True
        events = self.all_events(served, request, **options)
        if isinstance(events[-1], ErrorEvent):
            raise AssertionError(f"the stream broke off: {events[-1].error!r}") from events[-1].error
        return events

    def all_events(self, served: Served, request: Any = asking, **options: Any) -> list[Event]:
        """The events of one call that does not raise; the last may be an error."""
        __tracebackhide__ = True
        return unfailing(self.hear(self.stream(served, request, **options)))

    @property
    def whole(self) -> Script:
        """An answer with all that the wire knows."""
        return Script(
            TEXTS,
            () if "calls" in self.without else CALLS,
            thinking=() if "thinking" in self.without else THOUGHTS,
            usage=None if "usage" in self.without else USAGE,
        )

    @contextmanager
    def needed(self, rule: str) -> Generator[None]:
        """Around a case that is skipped if the suite's `without` names its rule, and that says so if it fails."""
        chosen(dict.fromkeys((*SCRIPT_RULES, *SENT_RULES), ""), None, self.without)
        if rule in self.without:
            reasons: Any = self.without  # a set of names, without reasons, will do
            pytest.skip(f"{rule}: {reasons[rule] if isinstance(reasons, Mapping) else 'left out by the suite'}")
        try:
            yield
        except AssertionError as error:
            hooks = "" if rule in SENT_RULES else f"Do the suite's hooks say what the script says ({rule})? "
            error.add_note(f"{hooks}If the service rightly lacks it, leave it out: without = {{{rule!r}: 'why'}}")
            raise

    def refusal(self, reason: str) -> Script:
        """The script of a refusal, if the service knows it."""
        if reason not in self.reasons:
            pytest.skip(f"the service has no words for {reason}")
        return Script(error=AdapterError(reason, request_id=REQUEST_ID))

    def waiting(self, reason: str) -> dict[str, Any]:
        """The options of a call that fails by `reason`: where nothing is to come, the wait can be short."""
        return {"timeout": self.silence / 5} if reason == "timeout" else {}

    def raised(self, error: Exception | None, reason: str) -> AdapterError:
        """The error, which is an `AdapterError` of that reason."""
        assert isinstance(error, AdapterError), f"{error!r} is not an AdapterError"
        assert error.reason == reason, repr(error)
        return error

    def broken(self, error: LLMError, **options: Any) -> None:
        """A stream that says something, then fails: the error is its last event, and what came is kept."""
        with self.serving(Script(TEXTS, error=error)) as served:
            events = self.all_events(served, **options)
        assert isinstance(events[-1], ErrorEvent), f"the last event is {clip(events[-1])} and not {error!r}"
        assert (type(events[-1].error), events[-1].error.reason) == (type(error), error.reason)
        response = reduce(StreamCollector.apply_event, events, StreamCollector()).to_response()
        assert (response.output_text, response.finish_reason) == ("".join(TEXTS), "error")

    def seen(self, served: Served) -> float:
        """The seconds until the service sees that it was left, once."""
        began = time.monotonic()
        assert becomes(lambda: served.left() > 0, self.seconds), "the service never saw that it was left"
        took = time.monotonic() - began
        assert served.left() == 1
        return took


def unfailing(told: Told) -> list[Any]:
    """All that came, if the call has not failed; else its error is the cause of the failure."""
    __tracebackhide__ = True
    if told.error is not None:
        raise AssertionError(f"the call failed with {told.error!r}") from told.error
    assert told.events, "the call completed, and nothing came"
    return told.events


def missing(suite: object, hook: str) -> NoReturn:
    """Raises ``NotImplementedError``, which says which hook the author has yet to write."""
    raise NotImplementedError(f"{type(suite).__name__} has no {hook}(); its docstring in the base says what it gives")
