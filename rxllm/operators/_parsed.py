"""Parse the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, TypeVar, overload

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._shared.event_operators import fold_events
from rxllm.operators._shared.parse_answer import final_answer, parsed_value, text_parser
from rxllm.runtime import Stream

T = TypeVar("T")


@overload
def parsed(type: type[T] | Callable[[str], T], /) -> Callable[[Observable[Event]], Stream[T]]: ...
@overload
def parsed(type: Mapping[str, Any] | UnionType, /) -> Callable[[Observable[Event]], Stream[Any]]: ...
def parsed(type: Any, /) -> Callable[[Observable[Event]], Stream[Any]]:
    """Emit the answer, which is JSON, as one validated value of `type`, once it is complete.

    ::

        source         --{"na--me": "Lima"}--end--|
        parsed(City)   ---------------------------City("Lima")|

    >>> from rxllm import Fake, stream_generate
    >>> stream_generate(Fake("[2, 3, 5]"), "Three primes?").pipe(parsed(list[int])).run()
    [2, 3, 5]

    `type` is a ``response_format`` (a dataclass, a pydantic model, ``list[int]``, ``json_schema(...)``), any other type
    that msgspec knows, or a function of the text. After a request with the same ``response_format`` it emits the same
    value as ``Response.parsed``: of an answer ``{"value": [2, 3]}`` to ``list[int]`` that is ``[2, 3]``. In a chat only
    the final answer is parsed. Text that does not fit, and a response that asks for tools instead of answering, end the
    stream with ``ValidationError("invalid_output")``, whose metadata keeps the text, the finish reason and the usage; a
    stream that failed ends with its own error.

    Raises ``ValidationError("invalid_option")`` for any other `type`.
    """
    read = text_parser("type", type)
    return fold_events("parsed", lambda state: parsed_value(final_answer(state), read))
