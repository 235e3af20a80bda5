"""One call of a model: the part that every pipeline begins with."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import partial
from os import urandom
from typing import Any, TypeVar

import msgspec
from reactivex import Observable, abc, throw

from rxllm import operators as ops
from rxllm import validate
from rxllm.adapters import as_adapter
from rxllm.engine import Engine, as_engine
from rxllm.events import Event
from rxllm.operators._costs import costs_filled
from rxllm.operators._timeouts import limited
from rxllm.operators._tools.settings import ToolSettings
from rxllm.pipelines._elsewhere import other_engine, other_options, other_request
from rxllm.pipelines._observe import Observers, Span, retry_told, watched
from rxllm.pipelines._options import ChatOptions, checked
from rxllm.pipelines._request import chosen, merged, refuse_unanswered
from rxllm.pipelines._spans import CallSpan
from rxllm.runtime import Assembly, Stream, Timeouts, assembling, models, policy, retrying
from rxllm.values import Call, ModelInfo, Request, Thread, Usage, reader

T = TypeVar("T")


class Setup(msgspec.Struct, frozen=True):
    """An engine and a call's options, checked. `asked` are the call's own, `opts` those over the engine's params."""

    engine: Engine
    opts: Mapping[str, Any]
    asked: Mapping[str, Any]
    observers: Observers

    @classmethod
    def of(cls, engine: Any, options: type[Any], given: Mapping[str, Any]) -> Setup:
        made = as_engine(engine)
        return cls(made, checked(options, made, given), given, Observers(made.observers))

    def model_events(
        self, request: Request, request_id: str | None = None, before: Usage | None = None
    ) -> Stream[Event]:
        """The adapter's events: retried, through the engine's operators, seen by ``on_event``.

        `before` is what the chat's earlier steps have used.
        """

        def make() -> Observable[Event]:
            asked = merged(self.engine, request, self.opts, self.asked)
            validate.request(asked)
            model = self.model_info(asked)
            if model is not None:
                validate.capabilities(asked, model)
            refuse_unanswered(Thread(asked.messages))
            call = self._call(request_id or self.request_id())
            events = self._asking(asked, model, call)
            if self.engine.operators:
                ask = partial(self._elsewhere, request, asked, call, before)
                with assembling(Assembly(asked, call, ask, name_of(self.engine.adapter), before or Usage())):
                    events = events.pipe(*self.engine.operators)
            return events.pipe(ops.tap(self.opts["on_event"])) if "on_event" in self.opts else events

        return Deferred(make)

    def model_info(self, request: Request) -> ModelInfo | None:
        """What the catalogue says of the model that `request` asks."""
        return models.find(name_of(self.engine.adapter), request.model)

    def observed(self, events: Stream[Event], span: Callable[..., Span], *about: Any) -> Stream[Event]:
        """`events`, of which ``span(observers, clock, *about)`` tells the engine's observers, if it has any."""
        return watched(events, lambda now: span(self.observers, now, *about)) if self.observers else events

    def response_format(self, request: Request) -> Any:
        """How the answer to `request` is read; what is no format the request's validation tells."""
        return reader(chosen("response_format", request.response_format, self.opts, self.asked))

    def presented(self, events: Stream[Event]) -> Stream[Event]:
        """What the subscriber asked to see of `events`."""
        return events.pipe(
            ops.include_raw_chunks(self.opts.get("include_raw_chunks", False)),
            ops.filter_deltas(
                text=self.opts.get("emit_text_deltas", True),
                tool=self.opts.get("emit_tool_deltas", True),
                thinking=self.opts.get("emit_thinking", True),
            ),
        )

    def tool_settings(self, request_id: str) -> ToolSettings:
        """How ``run_tools`` runs this call's tools."""
        opts, engine = self.opts, self.engine
        named = ("mode", "on_tool_error", "tool_timeout", "max_concurrency", "approve")
        return ToolSettings(
            tools=merged(engine, Request(), opts, self.asked).tools,
            context={**engine.context, **opts.get("context", {})},
            executor=opts.get("tool_executor", engine.tool_executor),
            encoder=opts.get("tool_result_encoder", engine.tool_result_encoder),
            session_id=opts.get("session_id"),
            request_id=request_id,
            engine=engine,
            **{name: opts[name] for name in named if name in opts},
        )

    def request_id(self) -> str:
        return request_id(self.opts)

    def _asking(self, request: Request, model: ModelInfo | None, call: Call) -> Stream[Event]:
        adapter = as_adapter(self.engine.adapter)
        provider = name_of(self.engine.adapter)
        limits = Timeouts.of(self.opts.get("timeout"))
        each, total = Timeouts(limits.first, limits.idle), Timeouts(total=limits.total)

        def attempt() -> Observable[Event]:
            events = adapter.stream(request, call)
            return events.pipe(limited(each, provider)) if each != Timeouts() else events

        rules = policy(self.opts.get("retry", self.engine.retry), self.engine.retry)
        about = (call.request_id, provider, request.model)
        told = retry_told(self.observers, *about) if self.observers else None
        events = retrying(attempt, rules, told).pipe(limited(total, provider))
        if model is not None and model.has_prices:
            events = events.pipe(costs_filled(lambda usage, _, __: model.priced(usage)))
        return self.observed(events, CallSpan, *about)

    def _elsewhere(
        self,
        request: Request,
        asked: Request,
        call: Call,
        before: Usage | None,
        engine: Any,
        model: str | None = None,
    ) -> Stream[Event]:
        """Another engine's answer to `request`, which this one asks as `asked`."""
        other = other_engine(engine, model, self.engine)
        setup = Setup.of(other, ChatOptions, other_options(self.asked))
        return setup.model_events(other_request(request, asked, self.asked, other), call.request_id, before)

    def _call(self, request_id: str) -> Call:
        return Call(
            request_id=request_id,
            api_key=self.opts.get("api_key"),
            timeout=Timeouts.of(self.opts.get("timeout")).silence,
            raw=self.opts.get("include_raw_chunks", False),
            metadata=self.opts.get("metadata", {}),
            observers=(self.observers.tell,) if self.observers else (),
        )


def request_id(opts: Mapping[str, Any]) -> str:
    """The option, else a new one: 22 characters that are safe in a URL."""
    # What ``secrets.token_urlsafe`` does, without its import: that brings all of OpenSSL's hashes.
    return opts.get("request_id") or urlsafe_b64encode(urandom(16)).rstrip(b"=").decode()


class Deferred(Stream[T]):
    """A Stream made anew for each subscription; what `make` raises goes to ``on_error``."""

    def __init__(self, make: Callable[[], Observable[T]]) -> None:
        super().__init__()
        self._make = make

    def subscribe(
        self,
        on_next: abc.ObserverBase[T] | abc.OnNext[T] | None = None,
        on_error: abc.OnError | None = None,
        on_completed: abc.OnCompleted | None = None,
        *,
        scheduler: abc.SchedulerBase | None = None,
    ) -> abc.DisposableBase:
        try:
            made = self._make()
        except Exception as error:
            made = throw(error)
        return Stream.of(made).subscribe(on_next, on_error, on_completed, scheduler=scheduler)


def name_of(adapter: Any) -> str:
    """The adapter's provider, else its own name."""
    return getattr(adapter, "provider", None) or getattr(adapter, "__name__", None) or type(adapter).__name__
