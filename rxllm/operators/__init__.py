"""Operators for ``.pipe(...)``: ``from rxllm import operators as ops``.

Operators named ``to_...`` emit exactly one item. Operators whose name is a plain noun, such as ``words()``, emit many.
Streams have reactivex's operators as methods, such as ``stream.map(...)``. Operators from installed packages are in
``ops.plugins``. Functions that combine streams, such as ``race(a, b)``, are in ``rxllm`` itself.

==============  =======================================================================================================
observing       tap, trace, timed, snapshots, verify
text            text, to_text, thinking, words, sentences, smooth, map_text, redact, guard
selecting       only, filter_deltas, include_raw_chunks
slow consumers  conflate, keep_latest, gate
tools           tool_calls, run_tools, repeat_until_halt
typed answers   partials, text_at, items, parsed
results         to_response, to_step_result, to_chat_result, to_session, scan_collect, finally_result
timing          time_limits, stall_warning, hedge, rate_limited
failures        retry_before_content, fallback, restart, circuit_breaker, raise_errors, errors_as_events, journaled
several models  race
sharing         share_folded
cost            usage, cost, budget
your own        lift, map_async, continue_with
==============  =======================================================================================================
"""

from typing import TYPE_CHECKING

from rxllm._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rxllm.operators._budget import budget
    from rxllm.operators._circuit_breaker import circuit_breaker
    from rxllm.operators._cost import cost
    from rxllm.operators._event_operators import lift
    from rxllm.operators._event_operators import plugins as plugins
    from rxllm.operators._finally_result import finally_result
    from rxllm.operators._fold import (
        parsed,
        scan_collect,
        to_chat_result,
        to_response,
        to_session,
        to_step_result,
        to_text,
    )
    from rxllm.operators._guard import guard
    from rxllm.operators._json_answers import items, partials, text_at
    from rxllm.operators._look import journaled, tap, timed, trace
    from rxllm.operators._map_async import map_async
    from rxllm.operators._pacing import gate, smooth, snapshots
    from rxllm.operators._race_and_fallback import fallback, hedge, race
    from rxllm.operators._rate_limited import rate_limited
    from rxllm.operators._redact import map_text, redact
    from rxllm.operators._repeat_until_halt import continue_with, repeat_until_halt
    from rxllm.operators._retry import errors_as_events, raise_errors, restart, retry_before_content
    from rxllm.operators._run_tools import run_tools
    from rxllm.operators._select import filter_deltas, include_raw_chunks, only, text, thinking, tool_calls, usage
    from rxllm.operators._share_folded import share_folded
    from rxllm.operators._slow_consumers import conflate, keep_latest
    from rxllm.operators._time_limits import stall_warning, time_limits
    from rxllm.operators._verify import verify
    from rxllm.operators._words_and_sentences import sentences, words

__all__ = [
    "budget",
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
    "map_async",
    "map_text",
    "only",
    "parsed",
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
    "tap",
    "text",
    "text_at",
    "thinking",
    "time_limits",
    "timed",
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


def _no_operator(name: str) -> AttributeError:
    import reactivex.operators

    from rxllm.runtime import Stream
    from rxllm.values.advice import advice, no_attribute

    remedy = advice("rxllm.operators", name)
    if not remedy and hasattr(reactivex.operators, name) and hasattr(Stream, name):
        remedy = f"stream.{name}(...) or reactivex.operators.{name}(...); {name} is a reactivex operator"
    return no_attribute("module 'rxllm.operators'", name, __all__, remedy)


if not TYPE_CHECKING:  # With `__getattr__`, a type checker would accept any name.
    # Each file is imported the first time that one of its names is used.
    __getattr__ = lazy_exports(
        __name__,
        {
            "_budget": "budget",
            "_circuit_breaker": "circuit_breaker",
            "_cost": "cost",
            "_event_operators": "lift plugins",
            "_finally_result": "finally_result",
            "_fold": "parsed scan_collect to_chat_result to_response to_session to_step_result to_text",
            "_guard": "guard",
            "_json_answers": "items partials text_at",
            "_look": "journaled tap timed trace",
            "_map_async": "map_async",
            "_race_and_fallback": "fallback hedge race",
            "_rate_limited": "rate_limited",
            "_redact": "map_text redact",
            "_repeat_until_halt": "continue_with repeat_until_halt",
            "_retry": "errors_as_events raise_errors restart retry_before_content",
            "_run_tools": "run_tools",
            "_select": "filter_deltas include_raw_chunks only text thinking tool_calls usage",
            "_share_folded": "share_folded",
            "_slow_consumers": "conflate keep_latest",
            "_time_limits": "stall_warning time_limits",
            "_pacing": "gate smooth snapshots",
            "_verify": "verify",
            "_words_and_sentences": "sentences words",
        },
        _no_operator,
    )


def __dir__() -> list[str]:
    return [*__all__, "plugins"]
