"""A model call, stage by stage.

================  ==========================================================  ========================================
stage             purpose                                                     when it is present
================  ==========================================================  ========================================
system            put the system prompts before the thread                    ``system=`` is set
prepare           change the request, or refuse it                            ``Engine(prepare=)`` is set
source            call ``adapter.stream(request, call)`` for each attempt     always
timeouts          fail an attempt if the model is silent for too long         ``timeout`` is set
retry             retry an attempt that fails before it produces content      always
total timeout     fail the call if its attempts take too long in total        ``Timeouts(total=)`` is set
cost              add the costs to the usage                                  ``rxllm.models`` has the prices
watch             notify the observers                                        ``Engine(observers=)`` is set
journal           record the answer, or emit the recorded one                 ``ops.journaled`` wraps the stream
budget            count the usage against a budget                            an ``ops.budget`` applies to the stream
operators         apply the engine's own operators, in order                  ``Engine(operators=)`` is set
raise errors      turn an `ErrorEvent` into ``on_error``                      ``Engine(errors="raise")`` is set
on_event          pass each event to the caller's function                    ``on_event`` is set
================  ==========================================================  ========================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import msgspec
from reactivex import Observable

from rxllm import models, validate
from rxllm import operators as ops
from rxllm.adapters import as_adapter
from rxllm.engine import Operator
from rxllm.events import Event, MessageCompleted
from rxllm.pipelines._observers import CallSpan, notify_retry, watch_stream
from rxllm.pipelines._prepare import prepare_request
from rxllm.pipelines._setup import (
    Setup,
    other_engine,
    other_options,
    other_request,
    refused_settings,
    unanswered_calls,
)
from rxllm.pipelines.options import ChatOptions, request_id
from rxllm.runtime import (
    Budget,
    Deferred,
    EngineCall,
    HoldsBudget,
    RecallingJournal,
    Scope,
    Stream,
    applying_operators,
    current_scope,
    provider_name,
    scoped,
    within,
)
from rxllm.values import Call, Request, Response, Thread, request_key, unanswered
from rxllm.values.request_keys import undescribed

log = logging.getLogger("rxllm")


def model_events(setup: Setup, request: Request) -> Stream[Event]:
    """Return the events of the answer. Each subscription makes a new call."""

    def make() -> Stream[Event]:
        scope, call = current_scope.get(), setup.call(request_id(setup.options))
        chat = {} if scope.chat is None else scope.chat
        below = scope.below_model().under(setup.engine.operators, chat)
        if scope.counted:  # the outer call, whose adapter uses this engine, has already been counted
            below = msgspec.structs.replace(below, counted=scope.counted)

        def answer(sent: Request) -> Stream[Event]:
            _check(setup, sent)
            events, engine_call = source(setup, sent, call), _engine_call(setup, request, sent, call, scope, chat)
            with applying_operators(engine_call):
                for _, stage in stages(setup, sent, call, engine_call):
                    events = stage(events)
            return Stream.of(events)

        functions, completed = setup.engine.prepare, setup.with_system(setup.complete(request))
        with within(below):
            return scoped(prepare_request(functions, completed, answer) if functions else answer(completed), below)

    return Deferred(make)


def source(setup: Setup, sent: Request, call: Call) -> Observable[Event]:
    """Return the adapter's events. Each subscription makes a new attempt."""
    adapter = as_adapter(setup.engine.adapter)
    return Deferred(lambda: adapter.stream(sent, current_scope.get().attempt(call)))


def stages(setup: Setup, sent: Request, call: Call, engine_call: EngineCall) -> Iterator[tuple[str, Operator]]:
    """Yield the name and operator of each stage, in order."""
    engine, options, limits = setup.engine, setup.options, setup.timeouts
    ids = (call.request_id, engine_call.provider, sent.model, options.get("session_id"))

    if limits.first is not None or limits.idle is not None:
        yield "timeouts", ops.time_limits(limits.first, limits.idle)

    on_retry = None if setup.observers is None else notify_retry(setup.observers, *ids)
    yield "retry", ops.retry_before_content(call.retry, on_retry=on_retry)

    if limits.total is not None:
        yield "total timeout", ops.time_limits(total=limits.total)

    model = setup.model_info(sent)
    if model is not None and model.has_prices:
        yield "cost", ops.cost(price=models.price_of(model))

    if setup.observers is not None:
        begin = partial(CallSpan, setup.observers, adapter=engine.adapter, request=sent)
        yield "watch", lambda events: watch_stream(events, begin, call.request_id, options.get("session_id"))

    if current_scope.get().journal is not None:
        yield "journal", partial(_use_journal, sent, engine_call.provider)

    # A budget always counts what the model call uses, regardless of its position among the operators.
    shares = current_scope.get().shares
    operators = [operator for operator in engine.operators if not isinstance(operator, HoldsBudget)]
    if shares and operators:
        # A model call that an operator itself makes does not count as part of this answer.
        yield "scope", scoped
    for share in shares:
        share.is_taken = True
        yield "budget", ops.budget(share.budget)
    for operator in operators:
        yield "operators", operator

    if engine.errors == "raise":
        yield "raise errors", ops.raise_errors()
    if "on_event" in options:
        yield "on_event", ops.tap(options["on_event"])


def _check(setup: Setup, sent: Request) -> None:
    validate.request(sent)
    model = setup.model_info(sent)
    if model is not None:
        validate.capabilities(sent, model)
    missing = unanswered(Thread(sent.messages))
    if missing:
        remedy = "append rxllm.tool_result(id, content) for each, or continue with rxllm.resume(engine, thread, ...)"
        raise unanswered_calls(missing, remedy)


def _use_journal(request: Request, provider: str, events: Observable[Event]) -> Stream[Event]:
    scope = current_scope.get()
    journal = scope.journal
    assert journal is not None
    described = request_key(request, provider)
    key = request_key(undescribed(request), provider) if request.tools else described

    def answer() -> Stream[Event]:
        # In earlier versions, keys included the tools' descriptions.
        is_old = isinstance(journal, RecallingJournal) and journal.has_response(scope.path, described)
        return Stream.of(journal.response(scope.path, described if is_old else key, events))

    return Deferred(answer)


def budget_counter(setup: Setup, requests: Sequence[Request]) -> Callable[[int, Hashable, Response[Any] | None], None]:
    """Return a function that counts answers from the journal against the budgets."""
    scope, call = current_scope.get(), setup.call("")
    budgets = [share.budget for share in scope.under(setup.engine.operators, None).shares]

    def count(index: int, line: Hashable, response: Response[Any] | None) -> None:
        for budget in budgets:
            if response is None:
                budget.count_journaled(line)
                continue
            request, operator = requests[index], ops.budget(budget)
            engine_call = _engine_call(setup, request, setup.complete(request), call, scope, {})
            budget.count_journaled(line, partial(cast(HoldsBudget, operator).spending, engine_call, response))

    return count


def _engine_call(
    setup: Setup, request: Request, sent: Request, call: Call, scope: Scope, chat: dict[Any, Budget]
) -> EngineCall:
    ask = partial(_ask_other, setup, request, sent, call, scope)
    engine = setup.engine
    return EngineCall(sent, call, ask, provider_name(engine.adapter), scope.usage, chat, engine.operators)


def _ask_other(
    setup: Setup, request: Request, sent: Request, call: Call, scope: Scope, engine: Any, model: str | None = None
) -> Stream[Event]:
    other = other_engine(engine, model, setup)
    options = {**other_options(setup.own_options), "request_id": call.request_id}
    other_setup = Setup.of(other, ChatOptions, options)
    request = other_request(replace(request, messages=sent.messages), sent, setup.own_options, other)
    left_out = refused_settings(other_setup, request)
    if left_out:
        kept = {name: value for name, value in options.items() if name not in left_out}
        other_setup, request = Setup.of(other, ChatOptions, kept), replace(request, **dict.fromkeys(left_out))
    events = model_events(other_setup, request)
    about_chat = {"usage": scope.usage, "chat": scope.chat}

    def answer() -> Stream[Event]:
        if left_out:
            names, model = ", ".join(left_out), other_setup.complete(request).model
            log.warning("request %s: left out %s, which %s does not accept", call.request_id, names, model)
        return scoped(events, msgspec.structs.replace(current_scope.get(), **about_chat))

    def note(event: Event) -> Event:
        if not isinstance(event, MessageCompleted):
            return event
        return msgspec.structs.replace(event, metadata={**event.metadata, "settings_left_out": left_out})

    return Deferred(answer).map(note) if left_out else Deferred(answer)
