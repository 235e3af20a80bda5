"""The operators, for ``.pipe(...)``: ``from rxllm import operators as ops``.

``to_x()`` emits exactly one item, a bare noun emits many. reactivex's own operators are methods of every stream; those
of other packages are in ``plugins``: ``ops.plugins.shout()``. Functions of several streams are beside the operators:
``rxllm.race(a, b)``, ``rxllm.merge_labelled({"a": a, "b": b})``.

==============  =======================================================================================================
looking         tap, trace, tally, snapshots, verify, checkpoint
text            text, to_text, thinking, words, sentences, smooth, map_text, redact, guard
some events     only, filter_deltas, include_raw_chunks
slow consumers  conflate, keep_latest, gate
tools           tool_calls, run_tools, repeat_until_halt
structure       partials, text_at, items, parsed, partial_json
results         to_response, to_step_result, to_chat_result, to_session, scan_collect, finally_result
waiting         time_limits, stall_warning, hedge, rate_limited
failing         retry_before_content, fallback, restart, circuit_breaker, raise_errors, errors_as_events, journaled
several models  race
sharing         share_folded
money           usage, cost, budget
your own        lift, continue_with
==============  =======================================================================================================
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxllm.operators._budget import budget
    from rxllm.operators._checkpoint import checkpoint
    from rxllm.operators._circuit_breaker import circuit_breaker
    from rxllm.operators._conflate import conflate
    from rxllm.operators._continue_with import continue_with
    from rxllm.operators._cost import cost
    from rxllm.operators._errors_as_events import errors_as_events
    from rxllm.operators._fallback import fallback
    from rxllm.operators._filter_deltas import filter_deltas
    from rxllm.operators._finally_result import finally_result
    from rxllm.operators._gate import gate
    from rxllm.operators._guard import guard
    from rxllm.operators._hedge import hedge
    from rxllm.operators._include_raw_chunks import include_raw_chunks
    from rxllm.operators._items import items
    from rxllm.operators._journaled import journaled
    from rxllm.operators._keep_latest import keep_latest
    from rxllm.operators._lift import lift
    from rxllm.operators._map_text import map_text
    from rxllm.operators._only import only
    from rxllm.operators._parsed import parsed
    from rxllm.operators._partial_json import partial_json
    from rxllm.operators._partials import partials
    from rxllm.operators._plugins import plugins as plugins
    from rxllm.operators._race import race
    from rxllm.operators._raise_errors import raise_errors
    from rxllm.operators._rate_limited import rate_limited
    from rxllm.operators._redact import redact
    from rxllm.operators._repeat_until_halt import repeat_until_halt
    from rxllm.operators._restart import restart
    from rxllm.operators._retry_before_content import retry_before_content
    from rxllm.operators._run_tools import run_tools
    from rxllm.operators._scan_collect import scan_collect
    from rxllm.operators._sentences import sentences
    from rxllm.operators._share_folded import share_folded
    from rxllm.operators._smooth import smooth
    from rxllm.operators._snapshots import snapshots
    from rxllm.operators._stall_warning import stall_warning
    from rxllm.operators._tally import tally
    from rxllm.operators._tap import tap
    from rxllm.operators._text import text
    from rxllm.operators._text_at import text_at
    from rxllm.operators._thinking import thinking
    from rxllm.operators._time_limits import time_limits
    from rxllm.operators._to_chat_result import to_chat_result
    from rxllm.operators._to_response import to_response
    from rxllm.operators._to_session import to_session
    from rxllm.operators._to_step_result import to_step_result
    from rxllm.operators._to_text import to_text
    from rxllm.operators._tool_calls import tool_calls
    from rxllm.operators._trace import trace
    from rxllm.operators._usage import usage
    from rxllm.operators._verify import verify
    from rxllm.operators._words import words

__all__ = [
    "budget",
    "checkpoint",
    "circuit_breaker",
    "conflate",
    "continue_with",
    "cost",
    "errors_as_events",
    "fallback",
    "filter_deltas",
    "finally_result",
    "gate",
    "guard",
    "hedge",
    "include_raw_chunks",
    "items",
    "journaled",
    "keep_latest",
    "lift",
    "map_text",
    "only",
    "parsed",
    "partial_json",
    "partials",
    "race",
    "raise_errors",
    "rate_limited",
    "redact",
    "repeat_until_halt",
    "restart",
    "retry_before_content",
    "run_tools",
    "scan_collect",
    "sentences",
    "share_folded",
    "smooth",
    "snapshots",
    "stall_warning",
    "tally",
    "tap",
    "text",
    "text_at",
    "thinking",
    "time_limits",
    "to_chat_result",
    "to_response",
    "to_session",
    "to_step_result",
    "to_text",
    "tool_calls",
    "trace",
    "usage",
    "verify",
    "words",
]

if not TYPE_CHECKING:  # to a type checker every name would be there

    def __getattr__(name: str) -> Any:
        # Each operator is in a file of its own name, which is imported when the operator is first used.
        if name not in (*__all__, "plugins"):
            raise _no_operator(name)
        operator = globals()[name] = getattr(import_module(f"{__name__}._{name}"), name)
        return operator


def _no_operator(name: str) -> AttributeError:
    import reactivex.operators

    from rxllm._other_names import OF_OPERATORS
    from rxllm.runtime import Stream
    from rxllm.values.argument_checks import no_attribute

    remedies = OF_OPERATORS
    if hasattr(reactivex.operators, name) and hasattr(Stream, name):
        theirs = f"stream.{name}(...), or reactivex.operators.{name}(...): it is an operator of reactivex"
        remedies = {name: theirs, **OF_OPERATORS}
    return no_attribute("module 'rxllm.operators'", name, __all__, remedies)


def __dir__() -> list[str]:
    return [*__all__, "plugins"]
