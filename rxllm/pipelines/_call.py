"""One call of a model: the part that every pipeline begins with."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
from reactivex import Observable

from rxllm import models, validate
from rxllm import operators as ops
from rxllm.adapters import as_adapter
from rxllm.engine import Engine, Operator, as_engine
from rxllm.events import Event
from rxllm.http import NO_TIMEOUTS, Timeouts
from rxllm.pipelines._observers import Attempts, CallSpan, Observers, Span, StepSpan, details, notify_retry, watched
from rxllm.pipelines._prepare import Deferred, prepared
from rxllm.pipelines._request import (
    complete_request,
    option_for,
    other_engine,
    other_options,
    other_request,
    unanswered_calls,
)
from rxllm.pipelines.options import ChatOptions, checked_options, request_id, set_options
from rxllm.runtime import (
    Budget,
    EngineCall,
    HoldsBudget,
    RecallingJournal,
    Scope,
    Stream,
    applying_operators,
    budgets_of,
    current_scope,
    policy,
    provider_name,
    returned_by,
    scoped,
    within,
)
from rxllm.telemetry import Telemetry
from rxllm.values import Call, ModelInfo, Request, Response, Thread, as_tools, reader, request_key, unanswered
from rxllm.values.request_keys import undescribed
from rxllm.values.secret_names import masked

T = TypeVar("T")
BeginSpan = Callable[..., Span]


class Setup(msgspec.Struct, frozen=True):
    """An engine and the checked options of a call: its `own_options`, and `options`, the same over the engine's."""

    engine: Engine
    options: Mapping[str, Any]
    own_options: Mapping[str, Any]
    observers: Observers
    timeouts: Timeouts

    @classmethod
    def of(cls, engine: Any, allowed: type[Any], own_options: Mapping[str, Any]) -> Setup:
        engine = as_engine(engine)
        if own_options.get("tools") is not None:
            own_options = {**own_options, "tools": as_tools(own_options["tools"])}
        options = checked_options(allowed, engine, own_options)
        own_options = set_options(own_options)
        return cls(engine, options, own_options, Observers(engine.observers), Timeouts.of(options.get("timeout")))

    def without(self, engine: Engine, *names: str) -> Setup:
        """Return a setup with another engine and without these options."""
        options, own_options = (
            {name: value for name, value in values.items() if name not in names}
            for values in (self.options, self.own_options)
        )
        return msgspec.structs.replace(self, engine=engine, options=options, own_options=own_options)

    def complete(self, request: Request) -> Request:
        """Return `request` with every option in its place."""
        return complete_request(self.engine, request, self.options, self.own_options)

    def model_events(self, request: Request) -> Stream[Event]:
        """Return the model source: the adapter's events, retried, through the engine's operators and ``on_event``."""

        def make() -> Observable[Event]:
            scope, id = current_scope.get(), request_id(self.options)
            chat = {} if scope.chat is None else scope.chat
            answer = partial(self._answer, request, self.call(id), scope, chat)
            below = self.budgeted(scope.below_model(), chat)
            if scope.counted:  # an adapter that asks this engine is under these budgets
                below = msgspec.structs.replace(below, counted=scope.counted)
            with within(below):
                return scoped(prepared(self.engine.prepare, self.complete(request), answer), below)

        return Deferred(make)

    def budgeted(self, scope: Scope, chat: dict[Any, Budget]) -> Scope:
        """Return the scope of calls that keep to the budgets of `scope`, and to the engine's."""
        return scope.under(budgets_of(self.engine.operators, chat))

    def budget_counter(self, requests: Sequence[Request]) -> Callable[[int, Hashable, Response[Any] | None], None]:
        """Return a function that counts a journal's answer to one of `requests` in the budgets of this subscription."""
        scope, call = current_scope.get(), self.call("")
        budgets = [share.budget for share in self.budgeted(scope, {}).shares]

        def count(index: int, line: Hashable, response: Response[Any] | None) -> None:
            for budget in budgets:
                if response is None:
                    budget.count_journaled(line)
                    continue
                request, operator = requests[index], ops.budget(budget)
                engine_call = self.engine_call(request, self.complete(request), call, scope, {})
                budget.count_journaled(line, partial(cast(HoldsBudget, operator).spending, engine_call, response))

        return count

    def model_info(self, request: Request) -> ModelInfo | None:
        """Return what the catalogue knows about the model of `request`."""
        return models.find(provider_name(self.engine.adapter), request.model)

    def observed(self, events: Stream[Event], span: BeginSpan) -> Stream[Event]:
        """Return `events`, watched by the engine's observers, if it has any, through a `span`."""
        if not self.observers:
            return events
        ids = (request_id(self.options), self.options.get("session_id"))
        begin = partial(span, self.observers, metadata=masked(self.complete(Request()).metadata))
        return watched(events, begin, *ids, is_shared=True)

    def observed_step(self, events: Stream[Event]) -> Stream[Event]:
        """Return `events`, which are a step's, watched by the engine's observers, if it has any."""
        if not self.observers:
            return events
        return self.observed(events, partial(StepSpan, tools=self.complete(Request()).tools))

    def traced_by(self, engine: Engine | None) -> Setup:
        """Return a setup whose engine has the tracers of `engine` too, for which it works."""
        tracers = () if engine is None else Observers(engine.observers).tracers
        added = [tracer for tracer in tracers if tracer not in self.engine.observers]
        if not added:
            return self
        return self.with_observer(*added)

    def with_observer(self, *added: Callable[[Telemetry], object]) -> Setup:
        """Return a setup that `added` observe too."""
        own = replace(self.engine, observers=(*added, *self.engine.observers))
        return msgspec.structs.replace(self, engine=own, observers=Observers(own.observers))

    def response_format(self, request: Request) -> Any:
        """Return the reader of the answer to `request`; a wrong format is reported when the request is validated."""
        return reader(option_for("response_format", request.response_format, self.options, self.own_options))

    def returned_by(
        self, function: str, stream: Stream[T], items: type[Any] | str = "events", request: Request | None = None
    ) -> Stream[T]:
        """Return `stream`, which `function` returns, and whose repr tells so with the model that it asks."""
        model = option_for("model", request and request.model, self.options, self.own_options) or self.engine.model
        return returned_by(function, stream, model or provider_name(self.engine.adapter), items)

    def presented(self, events: Stream[Event]) -> Stream[Event]:
        """Return those of `events` that the options let through."""
        return events.pipe(
            ops.include_raw_chunks(self.options.get("include_raw_chunks", False)),
            ops.filter_deltas(
                text=self.options.get("emit_text_deltas", True),
                tool=self.options.get("emit_tool_deltas", True),
                thinking=self.options.get("emit_thinking", True),
            ),
        )

    def tool_options(self) -> dict[str, Any]:
        """Return the arguments of ``run_tools`` for this call."""
        options, engine = self.options, self.engine
        plain = ("mode", "on_tool_error", "tool_timeout", "max_concurrency", "approve", "approve_timeout")
        return {
            "tools": self.complete(Request()).tools,
            "context": {**engine.context, **options.get("context", {})},
            "executor": options.get("tool_executor", engine.tool_executor),
            "encoder": options.get("tool_result_encoder", engine.tool_result_encoder),
            "engine": engine,
            "session_id": options.get("session_id"),
            "request_id": options.get("request_id"),
            **{name: options[name] for name in plain if name in options},
        }

    def _answer(
        self, request: Request, call: Call, scope: Scope, chat: dict[Any, Budget], sent: Request
    ) -> Stream[Event]:
        validate.request(sent)
        model = self.model_info(sent)
        if model is not None:
            validate.capabilities(sent, model)
        missing = unanswered(Thread(sent.messages))
        if missing:
            remedy = "append rxllm.tool_result(id, content) for each, or go on with rxllm.resume(engine, thread, ...)"
            raise unanswered_calls(missing, remedy)
        with applying_operators(self.engine_call(request, sent, call, scope, chat)):
            budgets, events = _budgets(), self._adapter_events(sent, model, call)
            # Each call is counted where it is made, so that the place of a budget in the list makes no difference.
            operators = [operator for operator in self.engine.operators if not isinstance(operator, HoldsBudget)]
            if budgets and operators:
                # What another operator asks for itself upon an event is not part of the answer that a budget counts.
                events = scoped(events)
            raising = (ops.raise_errors(),) if self.engine.errors == "raise" else ()
            events = events.pipe(*budgets, *operators, *raising)
        return events.pipe(ops.tap(self.options["on_event"])) if "on_event" in self.options else events

    def engine_call(
        self, request: Request, sent: Request, call: Call, scope: Scope, chat: dict[Any, Budget]
    ) -> EngineCall:
        """Return what operators may know of the call of `request`, which is sent as `sent`."""
        ask = partial(self._ask_other, replace(request, messages=sent.messages), sent, call, scope)
        operators = self.engine.operators
        return EngineCall(sent, call, ask, provider_name(self.engine.adapter), scope.usage, chat, operators)

    def _adapter_events(self, request: Request, model: ModelInfo | None, call: Call) -> Stream[Event]:
        adapter, limits, observers = as_adapter(self.engine.adapter), self.timeouts, self.observers
        provider, session_id = provider_name(self.engine.adapter), self.options.get("session_id")
        ids = (call.request_id, provider, request.model, session_id)
        rules = policy(self.options.get("retry", self.engine.retry), self.engine.retry)
        on_retry = notify_retry(observers, *ids) if observers else None
        operators = [ops.retry_before_content(rules, on_retry=on_retry)]
        if limits != NO_TIMEOUTS:
            operators = [ops.time_limits(limits.first, limits.idle), *operators, ops.time_limits(total=limits.total)]
        if model is not None and model.has_prices:
            operators.append(ops.cost(price=models.price_of(model)))

        def make() -> Stream[Event]:
            attempts = Attempts(observers, details(request, self.engine.adapter))
            events = Deferred(lambda: adapter.stream(request, attempts.begin(call))).pipe(*operators)
            begin = partial(CallSpan, observers, provider=provider, request=request, attempts=attempts)
            return watched(events, begin, call.request_id, session_id)

        events = Deferred(make) if observers else Deferred(lambda: adapter.stream(request, call)).pipe(*operators)
        return _journaled(events, request, provider)

    def _ask_other(
        self, request: Request, sent: Request, call: Call, scope: Scope, engine: Any, model: str | None = None
    ) -> Stream[Event]:
        """Return another engine's answer to `request`, which this one sends as `sent`."""
        other = other_engine(engine, model, self.engine)
        setup = Setup.of(other, ChatOptions, {**other_options(self.own_options), "request_id": call.request_id})
        events = setup.model_events(other_request(request, sent, self.own_options, other))
        about_chat = {"usage": scope.usage, "chat": scope.chat}
        return Deferred(lambda: scoped(events, msgspec.structs.replace(current_scope.get(), **about_chat)))

    def call(self, request_id: str) -> Call:
        """Return what the adapter may know of a call with this id."""
        return Call(
            request_id=request_id,
            api_key=self.options.get("api_key"),
            timeout=self.timeouts.silence,
            raw=self.options.get("include_raw_chunks", False),
            metadata=self.options.get("metadata", {}),
            headers={**(self.engine.params.get("headers") or {}), **self.own_options.get("headers", {})},
            observers=(self.observers.tell,) if self.observers else (),
        )


def _journaled(events: Stream[Event], request: Request, provider: str) -> Stream[Event]:
    """Return `events`, or what the journal of the subscription has in their place."""
    scope = current_scope.get()
    journal = scope.journal
    if journal is None:
        return events
    described = request_key(request, provider)
    key = request_key(undescribed(request), provider) if request.tools else described

    def answer() -> Stream[Event]:
        # Journals of earlier versions are written with the descriptions.
        is_old = isinstance(journal, RecallingJournal) and journal.has_response(scope.path, described)
        return Stream.of(journal.response(scope.path, described if is_old else key, events))

    return Deferred(answer)


def _budgets() -> list[Operator]:
    """Return the operators for the budgets of the current scope: each counts a call once."""
    shares = current_scope.get().shares
    for share in shares:
        share.is_taken = True
    return [ops.budget(share.budget) for share in shares]
