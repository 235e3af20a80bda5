"""What the tests of telemetry share."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rxllm import Engine, Fake, ToolCall, otel, tool
from tests.waiting import wait_until


class Open(SpanProcessor):
    """Keeps the names of the spans that have not ended."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.names[span.context.span_id] = span.name

    def on_end(self, span: Any) -> None:
        del self.names[span.context.span_id]


class Seen:
    """What a tracer writes: its finished spans, its metrics, and the `tracer` of the program around it."""

    def __init__(self, exporter: InMemorySpanExporter | None = None, **options: Any) -> None:
        self.exporter, self.reader = exporter or InMemorySpanExporter(), InMemoryMetricReader()
        self.provider, self.meters = TracerProvider(), MeterProvider([self.reader])
        self.open = Open()  # after the exporter, so that none open means that all are exported
        for processor in (SimpleSpanProcessor(self.exporter), self.open):
            self.provider.add_span_processor(processor)
        self.tracer = self.provider.get_tracer("program")
        self.observer = otel.traces(tracer_provider=self.provider, meter_provider=self.meters, **options)

    def engine(self, *script: Any, model: str = "small", **options: Any) -> Engine:
        return Engine(Fake(*script), model=model, observers=[self.observer], **options)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        wait_until(lambda: not self.open.names)  # a call that was left ends on another thread's loop
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def tree(self) -> list[Any]:
        """The names of the spans, each with those below it in the order of their starts."""
        assert_well_formed(self.spans)
        return below(None, self.spans)

    def points(self) -> dict[str, list[Any]]:
        """The data points of the metrics by name."""
        data: Any = self.reader.get_metrics_data()
        found = [
            metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
        ]
        return {metric.name: list(metric.data.data_points) for metric in found}

    def close(self) -> None:
        self.provider.shutdown()
        self.meters.shutdown()


def below(parent: int | None, spans: tuple[ReadableSpan, ...]) -> list[Any]:
    inner = [span for span in spans if (span.parent.span_id if span.parent else None) == parent]
    inner.sort(key=lambda span: span.start_time or 0)
    lines: list[Any] = []
    for span in inner:
        children = below(span.context.span_id, spans)
        lines += [(span.name, children)] if children else [span.name]
    return lines


def assert_well_formed(spans: tuple[ReadableSpan, ...]) -> None:
    """Every span has ended once, its parent is one of them, and it lies within that."""
    by_id = {span.context.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
        if span.parent is not None:
            parent: Any = by_id[span.parent.span_id]
            assert parent.context.trace_id == span.context.trace_id
            assert parent.start_time <= span.start_time
            if parent.instrumentation_scope.name == "rxllm":  # what is left ends after its reader has gone on
                assert span.end_time <= parent.end_time


@tool
def double(x: int) -> int:
    """Double it."""
    return 2 * x


DOUBLE = ToolCall("c1", "double", {"x": 21})
