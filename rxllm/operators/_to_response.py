"""One response from its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, overload

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.events import Event
from rxllm.operators._fold import fold
from rxllm.runtime import Stream
from rxllm.values import LLMError, Response, ValidationError

T = TypeVar("T")


@overload
def to_response(parse: None = None) -> Callable[[Observable[Event]], Stream[Response[Any]]]: ...
@overload
def to_response(parse: Callable[[str], T]) -> Callable[[Observable[Event]], Stream[Response[T]]]: ...
def to_response(parse: Callable[[str], Any] | None = None) -> Callable[[Observable[Event]], Stream[Response[Any]]]:
    """Fold the stream to its `Response`; ``parse(output_text)`` gives its `parsed`.

    ::

        source            --start--H--i--end--|
        to_response()     --------------------(Response)|

    >>> from rxllm import Fake, stream_generate
    >>> stream_generate(Fake("42"), "Six times seven?").pipe(to_response(int)).run().parsed
    42

    A response that failed, or that has tool calls, is not parsed. An exception of `parse` is raised as
    ``ValidationError("invalid_output")``, whose metadata keeps the text.
    """
    if parse is None:
        return fold(StreamCollector.to_response)
    return fold(lambda state: _parsed(state.to_response(), parse))


def _parsed(response: Response[Any], parse: Callable[[str], T]) -> Response[T]:
    if response.finish_reason == "error" or response.tool_calls:
        return response
    try:
        return replace(response, parsed=parse(response.output_text))
    except LLMError:
        raise
    except Exception as error:
        message = f"the answer does not parse: {type(error).__name__}: {error}"
        raise ValidationError("invalid_output", message, metadata={"text": response.output_text}) from error
