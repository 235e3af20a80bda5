"""One call of a model: the part that every pipeline begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from reactivex import Observable

from rxllm import operators as ops
from rxllm import validate
from rxllm.adapters import as_adapter
from rxllm.engine import Engine, as_engine
from rxllm.events import Event
from rxllm.pipelines._deferred import Deferred
from rxllm.pipelines._elsewhere import other_engine, other_options, other_request
from rxllm.pipelines._observe import Observers, retry_told, watched
from rxllm.pipelines._options import ChatOptions, checked
from rxllm.pipelines._prepare import prepared
from rxllm.pipelines._request import chosen, merged, refuse_unanswered
from rxllm.pipelines._spans import CallSpan, ChatSpan, StepSpan
from rxllm.runtime import (
    Assembly,
    Question,
    Scope,
    Stream,
    Timeouts,
    assembling,
    current_scope,
    models,
    new_id,
    policy,
    scoped,
    within,
)
from rxllm.values import Call, ModelInfo, Request, Thread, reader


class Setup(msgspec.Struct, frozen=True):
    """An engine and a call's options, checked. `asked` are the call's own, `opts` those over the engine's params."""

    engine: Engine
    opts: Mapping[str, Any]
    asked: Mapping[str, Any]
    observers: Observers
    timeouts: Timeouts

    @classmethod
    def of(cls, engine: Any, options: type[Any], arguments: Mapping[str, Any]) -> Setup:
        engine = as_engine(engine)
        opts = checked(options, engine, arguments)
        return cls(engine, opts, arguments, Observers(engine.observers), Timeouts.of(opts.get("timeout")))

    def model_events(self, request: Request, thread: Thread | None = None) -> Stream[Event]:
        """The model source: the adapter's events, retried, through the engine's operators, seen by ``on_event``.

        It answers the question of the step around it, see `Scope`: with `thread`, or the messages of `request`.
        """

        def make() -> Observable[Event]:
            scope = current_scope.get()
            request_id = self.request_id(scope)
            if scope.question is not None:
                self.ask(scope.question, Thread(request.messages) if thread is None else thread, request_id)
            asked = merged(self.engine, request, self.opts, self.asked)
            answer = partial(self._answer, request, self._call(request_id), scope.usage)
            below = scope.below_model()
            with within(below):
                events = prepared(self.engine.prepare, asked, answer)
            return scoped(events, below)

        return Deferred(make)

    def ask(self, question: Question, thread: Thread, request_id: str) -> None:
        """Fill in `question`, unless that has been done."""
        question.ask(thread, request_id, self.opts.get("session_id"), self.engine)

    def request_id(self, scope: Scope) -> str:
        """The option, else the chat's, else a new one."""
        return self.opts.get("request_id") or scope.request_id or new_id()

    def model_info(self, request: Request) -> ModelInfo | None:
        """What the catalogue says of the model that `request` asks."""
        return models.find(name_of(self.engine.adapter), request.model)

    def step_observed(self, events: Stream[Event]) -> Stream[Event]:
        """`events` of a step, of which the engine's observers are told, if it has any."""
        return self._observed(events, partial(StepSpan, self.observers))

    def chat_observed(self, events: Stream[Event]) -> Stream[Event]:
        """`events` of a chat, likewise."""
        return self._observed(events, partial(ChatSpan, self.observers))

    def _observed(self, events: Stream[Event], begin: Any) -> Stream[Event]:
        return watched(events, begin, self.opts.get("request_id")) if self.observers else events

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

    def tool_options(self) -> dict[str, Any]:
        """The arguments of ``run_tools`` for this call."""
        opts, engine = self.opts, self.engine
        plain = ("mode", "on_tool_error", "tool_timeout", "max_concurrency", "approve")
        return {
            "tools": merged(engine, Request(), opts, self.asked).tools,
            "context": {**engine.context, **opts.get("context", {})},
            "executor": opts.get("tool_executor", engine.tool_executor),
            "encoder": opts.get("tool_result_encoder", engine.tool_result_encoder),
            **{name: opts[name] for name in plain if name in opts},
        }

    def _answer(self, request: Request, call: Call, before: Any, asked: Request) -> Stream[Event]:
        validate.request(asked)
        model = self.model_info(asked)
        if model is not None:
            validate.capabilities(asked, model)
        refuse_unanswered(Thread(asked.messages))
        ask = partial(self._elsewhere, replace(request, messages=asked.messages), asked, call, before)
        with assembling(Assembly(asked, call, ask, name_of(self.engine.adapter), before)):
            events = self._adapter_events(asked, model, call).pipe(*self.engine.operators)
        return events.pipe(ops.tap(self.opts["on_event"])) if "on_event" in self.opts else events

    def _adapter_events(self, request: Request, model: ModelInfo | None, call: Call) -> Stream[Event]:
        adapter = as_adapter(self.engine.adapter)
        about = (name_of(self.engine.adapter), request.model)
        limits = self.timeouts
        rules = policy(self.opts.get("retry", self.engine.retry), self.engine.retry)
        on_retry = retry_told(self.observers, call.request_id, *about) if self.observers else None
        events = Deferred(lambda: adapter.stream(request, call)).pipe(
            ops.timeouts(limits.first, limits.idle),
            ops.retry_before_content(rules, on_retry=on_retry),
            ops.timeouts(total=limits.total),
        )
        if model is not None and model.has_prices:
            events = events.pipe(ops.cost(price=model.priced))
        if not self.observers:
            return events
        return watched(events, lambda now, ids: CallSpan(self.observers, now, ids, *about), call.request_id)

    def _elsewhere(
        self, request: Request, asked: Request, call: Call, before: Any, engine: Any, model: str | None = None
    ) -> Stream[Event]:
        """Another engine's answer to `request`, which this one asks as `asked`."""
        other = other_engine(engine, model, self.engine)
        setup = Setup.of(other, ChatOptions, {**other_options(self.asked), "request_id": call.request_id})
        events = setup.model_events(other_request(request, asked, self.asked, other))
        return scoped(events, msgspec.structs.replace(current_scope.get(), usage=before))

    def _call(self, request_id: str) -> Call:
        return Call(
            request_id=request_id,
            api_key=self.opts.get("api_key"),
            timeout=self.timeouts.silence,
            raw=self.opts.get("include_raw_chunks", False),
            metadata=self.opts.get("metadata", {}),
            observers=(self.observers.tell,) if self.observers else (),
        )


def request_id(opts: Mapping[str, Any]) -> str:
    """The option, else a new one."""
    return opts.get("request_id") or new_id()


def name_of(adapter: Any) -> str:
    """The adapter's provider, else its own name."""
    return getattr(adapter, "provider", None) or getattr(adapter, "__name__", None) or type(adapter).__name__
