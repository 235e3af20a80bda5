"""Fold the events of a response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, TypeVar, overload

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.collector.parsed import with_parsed
from rxllm.events import Event
from rxllm.operators._shared.event_operators import fold_events
from rxllm.operators._shared.parse_answer import Parse, answer_parser
from rxllm.runtime import Stream
from rxllm.values import Response

T = TypeVar("T")


@overload
def to_response(parse: None = None) -> Callable[[Observable[Event]], Stream[Response[Any]]]: ...
@overload
def to_response(parse: Callable[[str], T] | type[T]) -> Callable[[Observable[Event]], Stream[Response[T]]]: ...
@overload
def to_response(parse: str | Mapping[str, Any] | UnionType) -> Callable[[Observable[Event]], Stream[Response[Any]]]: ...
def to_response(parse: Parse = None) -> Callable[[Observable[Event]], Stream[Response[Any]]]:
    """Fold the stream to its `Response`; with `parse`, the text is parsed too.

    ::

        source            --start--H--i--end--|
        to_response()     --------------------(Response)|

    >>> from rxllm import Fake, stream_generate
    >>> stream_generate(Fake("42"), "Six times seven?").pipe(to_response(int)).run().parsed
    42

    `parse` is what `ops.parsed` takes: a type or a ``response_format``, against which the text is validated as JSON,
    with or without a Markdown fence; or a function of the text. A response that failed or has tool calls is not parsed.
    Text that does not fit ends the stream with ``ValidationError("invalid_output")``, so that ``retry`` and ``catch``
    see it; its metadata keeps the text, the finish reason and the usage.

    Raises ``ValidationError("invalid_option")`` for any other `parse`.
    """
    read = answer_parser(parse)
    if read is None:
        return fold_events("to_response", StreamCollector.to_response)
    return fold_events("to_response", lambda state: with_parsed(state.to_response(), read))
