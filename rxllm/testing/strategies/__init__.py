"""Hypothesis strategies: any value, any error, any event, and the event sequences that adapters may emit.

>>> from hypothesis import given
>>> from rxllm.testing import strategies
>>> @given(strategies.lawful_events)
... def test_it_begins_with_its_start(events):
...     assert type(events[0]).__name__ == "MessageStarted"
>>> test_it_begins_with_its_start()

=====================================================================  =============================================
`lawful_events`                                                        one response, as every adapter emits it
`events`, `event_lists`                                                any event, and any events in any order
`errors`                                                               any error of rxllm's
`values`; `messages`, `requests`, `responses`, `threads`, `tools` ...  any value, and those of one kind
`chunked(data)`                                                        bytes in any chunks
=====================================================================  =============================================

Needs hypothesis, which rxllm does not install.
"""

from __future__ import annotations

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "rxllm.testing.strategies needs hypothesis: pip install hypothesis", name=error.name
    ) from error

from rxllm.testing._chunks import cut
from rxllm.testing.strategies._events import event_lists, events, lawful_events
from rxllm.testing.strategies._values import (
    chat_results,
    errors,
    finish_reasons,
    free,
    halts,
    ids,
    images,
    maps,
    messages,
    parts,
    requests,
    responses,
    step_results,
    texts,
    threads,
    tool_calls,
    tools,
    usages,
    values,
)

__all__ = [
    "chat_results",
    "chunked",
    "errors",
    "event_lists",
    "events",
    "finish_reasons",
    "free",
    "halts",
    "ids",
    "images",
    "lawful_events",
    "maps",
    "messages",
    "parts",
    "requests",
    "responses",
    "step_results",
    "texts",
    "threads",
    "tool_calls",
    "tools",
    "usages",
    "values",
]


@st.composite
def chunked(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """`data` in any chunks, empty ones among them; it shrinks to a single one."""
    return cut(data, *draw(st.lists(st.integers(0, len(data)), max_size=30)))


def __dir__() -> list[str]:
    return __all__
