"""Retry what fails before it has said anything."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event
from rxllm.runtime import OnRetry, Retry, Stream, policy_argument, retrying
from rxllm.values.arguments import check_function


def retry_before_content(
    policy: Retry = "default", *, on_retry: OnRetry | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Subscribe again to a stream of events that fails before its first content.

    ::

        source                    --start--X
        again                     ---start--H--i--end--|
        retry_before_content()    -----------start,H--i--end--|        (what came before X is not seen)

    >>> from rxllm import Call, Fake, Request, operators as ops, user
    >>> busy = Fake([("error", "rate_limited")], ["Hello"])
    >>> answer = busy.stream(Request((user("Hi"),)), Call())
    >>> answer.pipe(retry_before_content({"base_delay": 0, "jitter": 0}), ops.to_text()).run()
    'Hello'

    `policy` is a `RetryPolicy`, a mapping of its fields, or False for none. Each attempt is held back until its first
    content (text, thinking, a tool call, a source, a file) or its ``MessageCompleted``; until then a failure that the
    policy retries, on either channel (``on_error``, or an ``ErrorEvent``), leads to a new subscription, which is a new
    request. The last failure is passed on as it came. ``on_retry(attempt, delay, error)`` is called before each wait,
    with the delay in seconds.

    The facade puts this operator directly behind ``adapter.stream(request, call)``, below an engine's ``operators``:
    they see one answer, whatever it took. Behind ``stream_generate`` the operators, a fallback or a budget among them,
    begin again too, after the facade's own attempts; give it ``retry=False`` then. reactivex's ``.retry`` knows
    ``on_error`` alone: a stream that ends with an ``ErrorEvent`` has completed for it, and one that fails half-way is
    said twice; ``ops.restart`` is for that.

    Raises ``ValidationError("invalid_option")`` for a `policy` that is none.
    """
    rules = policy_argument(policy)
    if on_retry is not None:
        check_function("on_retry", on_retry)
    return lambda source: retrying(lambda: source, rules, on_retry)
