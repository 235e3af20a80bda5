"""OpenTelemetry traces and metrics that follow the semantic conventions for GenAI.

::

    engine = Engine("openai:gpt-5", observers=[rxllm.otel.traces()])

==========================  =========  =============================================================================
span                        kind       covers
==========================  =========  =============================================================================
``chat MODEL``              client     a model call, including its retries
``generate_content MODEL``  client     an image call
``execute_tool NAME``       internal   a tool run
``invoke_agent NAME``       internal   a chat; if the chat runs as a tool, ``NAME`` is that tool's name
``step``                    internal   a step: a model call, and the tools that its answer asks for
==========================  =========  =============================================================================

A span ends as soon as its stream completes, fails or is disposed. Parent spans are looked up by telemetry id, so no
context token has to be kept. While a tool is running, its span is the current span.

The names in the conventions are still changing. rxllm uses the names as of November 2026
(https://github.com/open-telemetry/semantic-conventions-genai).
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import rxllm
from rxllm import EngineError, Message, Usage
from rxllm import operators as ops
from rxllm.values import TextPart
from rxllm.values.argument_checks import check, check_instance, explains_call

_missing: ImportError | None = None
try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    if TYPE_CHECKING:
        raise
    _missing = error  # ``from rxllm import *`` must work without opentelemetry

__all__ = ["Traces", "traces"]

OPERATION, PROVIDER, MODEL = "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"
STREAM, OUTPUT_TYPE, CONVERSATION = "gen_ai.request.stream", "gen_ai.output.type", "gen_ai.conversation.id"
RESPONSE_ID, RESPONSE_MODEL = "gen_ai.response.id", "gen_ai.response.model"
CHOICES = "gen_ai.request.choice.count"
FINISH_REASONS, FIRST_CHUNK = "gen_ai.response.finish_reasons", "gen_ai.response.time_to_first_chunk"
ADDRESS, PORT, ERROR_TYPE = "server.address", "server.port", "error.type"
AGENT, TOOL, TOOL_TYPE = "gen_ai.agent.name", "gen_ai.tool.name", "gen_ai.tool.type"
TOOL_CALL_ID, TOOL_DESCRIPTION = "gen_ai.tool.call.id", "gen_ai.tool.description"
TOKEN_TYPE, MODALITY = "gen_ai.token.type", "gen_ai.token.modality"
SYSTEM, INPUT, OUTPUT = "gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.output.messages"
DEFINITIONS, ARGUMENTS, RESULT = "gen_ai.tool.definitions", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"

OUTCOME, ATTEMPTS, RETRY, COST = "rxllm.outcome", "rxllm.attempts", "rxllm.retry", "rxllm.usage.cost"
REATTACHED = "rxllm.reattached"
STEP_INDEX, STEPS, HALTED = "rxllm.step.index", "rxllm.chat.steps", "rxllm.chat.halted_reason"
METADATA, REQUEST_ID, QUEUED = "rxllm.metadata", "rxllm.request.id", "rxllm.queued"
FIRST_CHANGE = "rxllm.prefix.first_change"
# The names above that begin with "rxllm." are rxllm's own. They are not part of the conventions.

_SAME = ("temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty")
PARAMETERS = {name: f"gen_ai.request.{name}" for name in _SAME} | {
    "stop": "gen_ai.request.stop_sequences",
    "reasoning_effort": "gen_ai.request.reasoning.level",
    "response_format": OUTPUT_TYPE,
}
USAGE = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached_input_tokens": "cache_read.input_tokens",
    "cache_write_input_tokens": "cache_write.input_tokens",
    "reasoning_tokens": "reasoning.output_tokens",
}
"""Maps usage fields to their names in the conventions. A prefix is added to each name."""

PROVIDERS = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "openai-responses": "openai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Maps a provider's name in rxllm to its name in the conventions, where the names differ."""

_ABSENT = {"input_tokens": 0, "output_tokens": 0}
RELEASED, NEWEST = "gen_ai.client.operation", "gen_ai.client.inference"
TOKENS: dict[str, list[tuple[str, str, dict[str, str], int | None]]] = {
    RELEASED: [
        ("input_tokens", "gen_ai.client.token.usage", {TOKEN_TYPE: "input"}, None),
        ("output_tokens", "gen_ai.client.token.usage", {TOKEN_TYPE: "output"}, None),
    ],
    NEWEST: [
        ("input_tokens", f"{NEWEST}.operation.input_tokens", {}, None),
        ("output_tokens", f"{NEWEST}.operation.output_tokens", {}, None),
        *(
            (field, f"{NEWEST}.usage.{name}", {MODALITY: "unknown"}, _ABSENT.get(field))
            for field, name in USAGE.items()
        ),
    ],
}
"""The token metrics as (usage field, name, labels, default).

A metric that has a modality is a counter, and any other metric is a histogram.
"""
TOOL_DURATION, AGENT_DURATION = "gen_ai.execute_tool.duration", "gen_ai.invoke_agent.duration"
SECONDS, AGENT_SECONDS = [0.01 * 2**n for n in range(14)], [0.1 * 2**n for n in range(13)]
COUNTS = [float(4**n) for n in range(14)]

_FINISH = {"tool_calls": "tool_call", None: "error"}  # a truncated response has no finish reason
LATEST = 256
"""The maximum number of ended spans to keep, in case a child span starts later."""
_BODY = "rxllm.otel/body"


@explains_call("observers=[rxllm.otel.traces(content=True)]")
def traces(
    *,
    content: bool | None = None,
    cost: bool = False,
    propagate: bool = True,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Traces:
    """Return an observer that writes spans and metrics.

    Use it as ``Engine(..., observers=[rxllm.otel.traces()])``. It also observes the engine's agents. If another engine
    answers in place of this one, that engine is observed as well. By default, traces use OpenTelemetry's global
    providers. The call's span is a child of the span that is current when the call is subscribed to. If `propagate` is
    True, each attempt sends a ``traceparent`` header, unless the caller sets that header.

    If `content` is True, the spans include messages, tools, arguments and results, but not the model's reasoning. If it
    is None, the environment variable ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` decides: ``span_only``,
    ``span_and_event`` and ``true`` stand for True. If `cost` is True, costs from the provider, ``rxllm.models`` or
    genai-prices are added.

    Raises ``ValidationError("invalid_option")`` if an option is invalid. Raises ``EngineError("missing_dependency")``
    if opentelemetry-api is not installed, or if `cost` is True and genai-prices is not installed.
    """
    if _missing is not None:
        message = "traces require opentelemetry-api, which is not installed; run pip install 'rxllm[otel]'"
        raise EngineError("missing_dependency", message) from _missing
    check_instance("content", content, bool | None, "True, False or None")
    check_instance("cost", cost, bool, "True or False")
    check_instance("propagate", propagate, bool, "True or False")
    for name, provider, method in (
        ("tracer_provider", tracer_provider, "get_tracer"),
        ("meter_provider", meter_provider, "get_meter"),
    ):
        check(name, provider, provider is None or hasattr(provider, method), f"None or a provider with {method}")
    if content is None:
        variable = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
        content = variable.strip().lower() in ("span_only", "span_and_event", "true")
    if cost:
        ops.cost()  # raises an error if genai-prices is not installed
    providers = {"tracer_provider": tracer_provider, "meter_provider": meter_provider}
    return Traces(content=content, cost=cost, propagate=propagate, **providers)


class Traces(rxllm.telemetry.Tracer):
    """The observer that `traces` returns. Observers with equal settings are equal."""

    def __init__(self, **settings: Any) -> None:
        self.content = settings["content"]
        self._settings = settings
        self._tracer = trace.get_tracer("rxllm", rxllm.__version__, settings["tracer_provider"])
        self._metrics = _Metrics(metrics.get_meter("rxllm", rxllm.__version__, settings["meter_provider"]))
        self._wire = TraceContextTextMapPropagator()  # omits baggage, which providers must not see
        self._open: dict[str, _Open] = {}
        self._ended: OrderedDict[str, Context] = OrderedDict()  # another thread may start a child span later
        self._handlers: dict[type[Any], Callable[[Any], object]] = {
            rxllm.telemetry.CallStarted: self._start_call,
            rxllm.telemetry.CallFinished: self._end_call,
            rxllm.telemetry.RetryAttempt: self._add_retry,
            rxllm.telemetry.Reattached: self._add_reattached,
            rxllm.telemetry.ImagesStarted: self._start_call,
            rxllm.telemetry.ImagesFinished: self._end_call,
            rxllm.telemetry.ToolStarted: self._start_tool,
            rxllm.telemetry.ToolFinished: self._end_tool,
            rxllm.telemetry.StepStarted: self._start_step,
            rxllm.telemetry.StepFinished: self._end,
            rxllm.telemetry.ChatStarted: self._start_chat,
            rxllm.telemetry.ChatFinished: self._end_chat,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traces) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(tuple(self._settings.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._settings["tracer_provider"] is not None or self._settings["meter_provider"] is not None:
            raise TypeError(
                "traces(...) cannot be pickled with its providers; omit tracer_provider and meter_provider, "
                "and set OpenTelemetry's global providers in each process"
            )
        return partial(traces, **self._settings), ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Traces:
        return self

    def __call__(self, value: rxllm.telemetry.Telemetry) -> None:
        if (handler := self._handlers.get(type(value))) is not None:
            handler(value)

    def request_headers(self, call_id: str) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        if self._settings["propagate"] and (opened := self._open.get(call_id)) is not None:
            self._wire.inject(headers, opened.context)
        return headers

    # Calls

    def _start_call(self, value: rxllm.telemetry.CallStarted | rxllm.telemetry.ImagesStarted) -> None:
        details = value.details
        if isinstance(value, rxllm.telemetry.CallStarted):
            operation, own = "chat", {STREAM: True, **_request_content(value.content)}
        else:
            operation, own = "generate_content", {OUTPUT_TYPE: "image", CHOICES: value.n if value.n != 1 else None}
        attributes: dict[str, Any] = {
            OPERATION: operation,
            PROVIDER: PROVIDERS.get(value.provider, value.provider),
            MODEL: value.model,
            ADDRESS: details.address,
            PORT: details.port,
            QUEUED: details.queued if details.queued >= 0.001 else None,
            **own,
            **{PARAMETERS[name]: parameter for name, parameter in details.parameters.items()},
            **_notes(details.metadata),
        }
        name = f"{operation} {value.model}" if value.model else operation
        self._start(value, name, attributes, (OPERATION, PROVIDER, MODEL, ADDRESS, PORT))

    def _add_retry(self, value: rxllm.telemetry.RetryAttempt) -> None:
        if value.id in self._open:
            attributes = {"attempt": value.attempt, "delay": value.delay, ERROR_TYPE: _error_type(value.error)}
            self._open[value.id].span.add_event(RETRY, attributes)

    def _add_reattached(self, value: rxllm.telemetry.Reattached) -> None:
        if value.id in self._open:
            attributes = {"seconds": value.seconds, ERROR_TYPE: _error_type(value.error)}
            self._open[value.id].span.add_event(REATTACHED, attributes)

    def _end_call(self, value: rxllm.telemetry.CallFinished | rxllm.telemetry.ImagesFinished) -> None:
        details, usage = value.details, value.usage
        attributes: dict[str, Any] = {
            RESPONSE_ID: details.response_id,
            RESPONSE_MODEL: details.response_model,
            FIRST_CHUNK: next(iter(details.chunks), None),
            ATTEMPTS: details.attempts if details.attempts > 1 else None,
            FIRST_CHANGE: getattr(details.notes.get("prefix"), "first_change", None),
            **_tokens(usage),
        }
        if isinstance(value, rxllm.telemetry.CallFinished):
            reason = _FINISH.get(value.finish_reason, value.finish_reason)
            attributes[FINISH_REASONS] = [reason]
            if value.content is not None:
                attributes[OUTPUT] = _json([{**_message(value.content), "finish_reason": reason}])
        if self._settings["cost"]:
            attributes[COST] = usage.total_cost if usage.total_cost is not None else _price(value)
        if (opened := self._end(value, attributes)) is not None:
            labels = opened.labels | ({RESPONSE_MODEL: details.response_model} if details.response_model else {})
            self._metrics.record_call(value, labels, attributes.get(COST), opened.context)

    # Tools, steps and chats

    def _start_tool(self, value: rxllm.telemetry.ToolStarted) -> None:
        attributes: dict[str, Any] = {
            OPERATION: "execute_tool",
            TOOL: value.tool,
            TOOL_TYPE: "function",
            TOOL_CALL_ID: value.tool_call_id,
            TOOL_DESCRIPTION: value.description,
            ARGUMENTS: None if value.content is None else _json(value.content),
        }
        opened = self._start(value, f"execute_tool {value.tool}", attributes, (TOOL, TOOL_TYPE))
        opened.agent = value.tool if value.is_agent else None
        # The current context is the tool's own copy, so nothing has to be detached later.
        body = _Body(self, value.id, len(value.path) + 1, _around(value))
        context.attach(context.set_value(_BODY, body, opened.context))

    def _end_tool(self, value: rxllm.telemetry.ToolFinished) -> None:
        opened = self._end(value, {RESULT: None if value.content is None else _json(value.content)})
        if opened is not None:
            self._metrics.tool.record(value.seconds, opened.labels, opened.context)

    def _start_step(self, value: rxllm.telemetry.StepStarted) -> None:
        chat = self._open.get(value.parent_id or "")
        self._start(value, "step", {STEP_INDEX: chat.steps if chat else 0, **_notes(value.metadata)})
        if chat is not None:
            chat.steps += 1

    def _start_chat(self, value: rxllm.telemetry.ChatStarted) -> None:
        tool = self._open.get(value.parent_id or "")
        agent = tool.agent if tool else None
        name = f"invoke_agent {agent}" if agent else "invoke_agent"
        self._start(value, name, {OPERATION: "invoke_agent", AGENT: agent, **_notes(value.metadata)}, (AGENT,))

    def _end_chat(self, value: rxllm.telemetry.ChatFinished) -> None:
        opened = self._end(value, {STEPS: value.steps, HALTED: value.halted_reason, **_tokens(value.usage)})
        if opened is not None:
            self._metrics.agent.record(value.seconds, opened.labels, opened.context)

    # Spans

    def _start(self, value: Any, name: str, attributes: Mapping[str, Any], labels: Iterable[str] = ()) -> _Open:
        present = {key: entry for key, entry in attributes.items() if entry not in (None, "")}
        present[REQUEST_ID] = value.request_id
        if value.session_id:
            present[CONVERSATION] = value.session_id
        parent = self._parent(value)
        kind = SpanKind.CLIENT if PROVIDER in present else SpanKind.INTERNAL
        span = self._tracer.start_span(name, parent, kind, present)
        counted = {key: present[key] for key in labels if key in present}
        opened = self._open[value.id] = _Open(span, trace.set_span_in_context(span, parent), counted)
        return opened

    def _parent(self, value: Any) -> Context:
        """Return the context that is the parent of the span for `value`."""
        here = _around(value)
        body = _body(here)
        if body is not None and body.tool_id == value.parent_id and body.owner is self:
            return here  # includes spans that the tool's function has opened
        id = value.parent_id or ""
        for parent_id in (id, id.partition("/")[0]):  # a tool that was disposed before it began has no span
            opened = self._open.get(parent_id)
            parent = self._ended.get(parent_id) if opened is None else opened.context
            if parent is not None:
                return parent
        return here

    def _end(self, value: Any, attributes: Mapping[str, Any] | None = None) -> _Open | None:
        opened = self._open.get(value.id)
        if opened is None:
            return None
        # Add the ended span before removing the open one, because another thread may start a child in between.
        light = trace.NonRecordingSpan(opened.span.get_span_context())
        self._ended[value.id] = trace.set_span_in_context(light, opened.context)
        if len(self._ended) > LATEST:
            self._ended.popitem(last=False)
        del self._open[value.id]
        ending: dict[str, Any] = {}
        if value.outcome == "cancelled":
            ending[OUTCOME] = "cancelled"  # not an error, because the losers of a race end this way
        if value.outcome == "failed":
            ending[ERROR_TYPE] = _error_type(value.error)
            # The error's message might quote the request, so it counts as content.
            opened.span.set_status(Status(StatusCode.ERROR, str(value.error) if self.content else None))
        opened.labels |= ending
        present = {key: entry for key, entry in (attributes or {}).items() if entry is not None}
        opened.span.set_attributes({**present, **ending})
        opened.span.end()
        return opened


@dataclass
class _Open:
    """An open span and the labels for its metrics.

    `steps` is the number of steps that a chat has started. `agent` is the tool's name if the tool is an agent.
    """

    span: trace.Span
    context: Context
    labels: dict[str, Any]
    steps: int = 0
    agent: str | None = None


class _Body(NamedTuple):
    """Identifies the tool that is running in a context. `around` is the context outside the tool."""

    owner: Traces
    tool_id: str
    depth: int
    around: Context


def _body(here: Context) -> _Body | None:
    return cast(Any, context.get_value(_BODY, here))


def _around(value: Any) -> Context:
    """Return the context that `value` belongs to."""
    here = context.get_current()
    # After tool calls, the next step starts in the context of the tool that finished last.
    while (body := _body(here)) is not None and body.depth > len(value.path):
        here = body.around
    return here


class _Metrics:
    """The metric instruments.

    The environment variable ``OTEL_SEMCONV_STABILITY_OPT_IN`` determines whether they use the released names or
    the newest names.
    """

    def __init__(self, meter: metrics.Meter) -> None:
        def histogram(name: str, unit: str, buckets: list[float]) -> metrics.Histogram:
            return meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=buckets)

        opted = os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",")
        self._calls = NEWEST if "gen_ai_latest_experimental" in map(str.strip, opted) else RELEASED
        self._duration = histogram(f"{self._calls}.duration", "s", SECONDS)
        self._first_chunk = histogram(f"{self._calls}.time_to_first_chunk", "s", SECONDS)
        self._per_chunk = histogram(f"{self._calls}.time_per_output_chunk", "s", SECONDS)
        self.tool = histogram(TOOL_DURATION, "s", SECONDS)
        self.agent = histogram(AGENT_DURATION, "s", AGENT_SECONDS)
        self._cost = meter.create_counter(COST, "{USD}")
        self._count: dict[str, Callable[..., None]] = {}
        for _, name, label, _ in TOKENS[self._calls]:
            if MODALITY in label:
                self._count[name] = meter.create_counter(name, "{token}").add
            elif name not in self._count:
                self._count[name] = histogram(name, "{token}", COUNTS).record

    def record_call(self, value: Any, labels: dict[str, Any], cost: Any, where: Context) -> None:
        """Record the metrics for a ``CallFinished`` or ``ImagesFinished``."""
        self._duration.record(value.seconds, labels, where)
        chunks = value.details.chunks
        if chunks:
            self._first_chunk.record(chunks[0], labels, where)
        nowhere = Context()  # recording an exemplar for every chunk would double the cost
        for earlier, later in pairwise(chunks):
            self._per_chunk.record(later - earlier, labels, nowhere)
        if cost is not None:
            self._cost.add(cost, labels, where)
        if self._calls == NEWEST:
            labels = {name: label for name, label in labels.items() if name not in (ERROR_TYPE, OUTCOME)}
        for field, name, label, default in TOKENS[self._calls]:
            count = getattr(value.usage, field, None)
            if count is not None or default is not None:
                self._count[name](count or 0, {**labels, **label}, where)


def _tokens(usage: object) -> dict[str, Any]:
    return {f"gen_ai.usage.{name}": getattr(usage, field, None) for field, name in USAGE.items()}


def _notes(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the caller's metadata as span attributes.

    A scalar stays as it is, and so does a sequence of scalars of the same type. Any other value is converted to JSON.
    """
    return {f"{METADATA}.{name}": _attribute(value) for name, value in metadata.items()}


def _attribute(value: Any) -> Any:
    entries: list[Any] = [*cast(list[Any], value)] if isinstance(value, list | tuple) else [value]
    if all(map(_fits_otlp, entries)) and len({*map(type, entries)}) < 2:
        return cast(Any, value)
    return _json(value, lambda entry: type(entry).__name__)  # ``str(entry)`` might contain a secret


def _fits_otlp(entry: Any) -> bool:
    # Exporters drop text that UTF-8 cannot encode, and integers of more than 64 bits.
    if isinstance(entry, str):
        return entry.isascii() or entry.encode("utf-8", "replace").decode() == entry
    return entry is None or isinstance(entry, float) or (isinstance(entry, int) and -(2**63) <= entry < 2**63)


def _error_type(error: Exception | None) -> str:
    return error.reason if isinstance(error, rxllm.LLMError) else type(error).__qualname__ if error else "_OTHER"


def _price(value: rxllm.telemetry.CallFinished | rxllm.telemetry.ImagesFinished) -> float | None:
    if not isinstance(value.usage, Usage) or not value.model:
        return None
    name = f"{value.provider}:{value.model}"
    with suppress(Exception):  # a failed lookup must not prevent the span from ending
        return rxllm.models.priced(name, value.usage, response_model=value.details.response_model).total_cost
    return None


# Message contents, as JSON in the format of the semantic conventions


def _request_content(request: rxllm.Request | None) -> dict[str, Any]:
    if request is None:
        return {}
    system = [part for message in request.messages if message.role == "system" for part in _parts(message)]
    messages = [_message(message) for message in request.messages if message.role != "system"]
    tools = [
        {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema}
        for tool in request.tools
    ]
    found = {SYSTEM: system, INPUT: messages, DEFINITIONS: tools}
    return {name: _json(entries) for name, entries in found.items() if entries}


def _message(message: Message) -> dict[str, Any]:
    name = {"name": message.name} if message.name else {}
    return {"role": message.role, "parts": _parts(message), **name}


def _parts(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        answer = message.content if isinstance(message.content, dict) else message.text
        return [{"type": "tool_call_response", "id": message.tool_call_id, "response": answer}]
    parts: list[dict[str, Any]] = [
        {"type": "text", "content": part.text}
        if isinstance(part, TextPart)
        else {"type": type(part).__name__.removesuffix("Part").lower()}  # the kind of a file, but not its content
        for part in message.parts
    ]
    return [*parts, *map(_call, message.tool_calls)]


def _call(call: rxllm.ToolCall) -> dict[str, Any]:
    if call.metadata.get("server"):
        details = {"type": call.name, "arguments": call.arguments}
        return {"type": "server_tool_call", "id": call.id, "name": call.name, "server_tool_call": details}
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}


def _json(value: Any, other: Callable[[Any], str] = str) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=other)
    except Exception:  # a tool can return any object
        text = type(value).__name__
    return text.encode("utf-8", "replace").decode()


def __dir__() -> list[str]:
    return __all__
