"""Retry a stream that fails before its first content."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event
from rxllm.runtime import OnRetry, Retry, Stream, policy_argument, retrying
from rxllm.values.argument_checks import check_function


def retry_before_content(
    policy: Retry = "default", *, on_retry: OnRetry | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Subscribe again to a stream of events that fails before its first content.

    ::

        source                    --start--X
        again                              ---start--H---------i--end--|
        retry_before_content()    -------------------(start,H)-i--end--|        (what came before X is dropped)

    >>> from rxllm import Fake, Request, operators as ops, user
    >>> from rxllm.values import Call
    >>> busy = Fake([("error", "rate_limited")], ["Hello"])
    >>> answer = busy.stream(Request((user("Hi"),)), Call())
    >>> answer.pipe(retry_before_content({"base_delay": 0, "jitter": 0}), ops.to_text()).run()
    'Hello'

    `policy` is a `RetryPolicy`, a mapping of its fields, or False for none. Each attempt is held back until its first
    content (text, thinking, a tool call, a source, a file) or its ``MessageCompleted``; a failure before that, by
    ``on_error`` or an ``ErrorEvent``, leads to a new subscription, which is a new request, if the policy retries it.
    The last failure is passed on unchanged. ``on_retry(attempt, delay, error)`` is called before each wait, with the
    delay in seconds.

    The facade applies it directly to ``adapter.stream(request, call)``, below the engine's ``operators``, which see one
    answer. After ``stream_generate`` it also restarts those operators, such as a fallback or a budget, and only after
    the facade's own attempts; pass ``retry=False`` there. reactivex's ``.retry`` sees only ``on_error``, not an
    ``ErrorEvent``, and repeats the content of a stream that fails half-way; ``ops.restart`` is for that.

    Raises ``ValidationError("invalid_option")`` for any other `policy`, and unless `on_retry` is a function.
    """
    rules = policy_argument(policy)
    if on_retry is not None:
        check_function("on_retry", on_retry)
    return lambda source: retrying(lambda: source, rules, on_retry)
