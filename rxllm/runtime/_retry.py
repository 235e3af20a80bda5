"""Retry: a call that fails before its first content is made again.

A stream is held back until its first content event or its ``MessageCompleted``; until then a retryable failure, raised
or streamed, leads to a new subscription, which is a new request. After that everything passes as it comes. The last
failure is passed on as it came.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import fields, force_setattr, replace
from reactivex import Observable

from rxllm.events import Event
from rxllm.runtime._attempts import attempting
from rxllm.runtime._stream import Stream
from rxllm.values import AdapterError, LLMError, StreamError, ValidationError
from rxllm.values.arguments import did_you_mean, invalid_option, is_seconds, must_be

log = logging.getLogger("rxllm")


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often, and how many seconds between: the delay doubles from `base_delay` to `max_delay`, plus up to `jitter`.

    A provider's Retry-After is kept to, unless it asks for more than `max_retry_after`: then the failure is passed on.
    `retry_on` holds reasons of `AdapterError` and `StreamError`; a credit that is used up is never waited for. 0
    attempts are one: the first is no retry.

    Raises ``ValidationError("invalid_option")`` for values that make no sense.
    """

    max_attempts: int = 3
    base_delay: float = 0.5
    max_delay: float = 30.0
    jitter: float = 0.25
    retry_on: frozenset[str] = frozenset(
        {"rate_limited", "provider_unavailable", "timeout", "network_error", "truncated"}
    )
    max_retry_after: float = 60.0
    respect_retry_after: bool = True

    def __post_init__(self) -> None:
        force_setattr(self, "retry_on", _reasons(self.retry_on))
        checks = {name: is_seconds(getattr(self, name)) for name in _SECONDS}
        checks["max_attempts"] = type(self.max_attempts) is int and self.max_attempts >= 0
        checks["respect_retry_after"] = type(self.respect_retry_after) is bool
        wrong = [(("retry", name), f"cannot be {getattr(self, name)!r}") for name, fine in checks.items() if not fine]
        if unknown := self.retry_on - _REASONS:
            wrong.append((("retry", "retry_on"), _no_reasons(unknown)))
        if wrong:
            raise ValidationError("invalid_option", errors=wrong)

    def delay(self, error: LLMError, attempt: int) -> float:
        """Seconds to wait after the failed `attempt`, the first being 1."""
        backoff = min(self.max_delay, self.base_delay * 2.0 ** min(attempt - 1, 64))
        return max(self._asked(error), backoff) + random.uniform(0.0, self.jitter)

    def allows(self, error: BaseException, attempt: int) -> bool:
        """Whether another attempt follows the failed `attempt`."""
        if not isinstance(error, AdapterError | StreamError) or attempt >= self.max_attempts:
            return False
        if isinstance(error, AdapterError) and (error.status == 402 or error.code in _SPENT):
            return False
        return error.reason in self.retry_on and self._asked(error) <= self.max_retry_after

    def _asked(self, error: LLMError) -> float:
        return (error.retry_after or 0.0) if self.respect_retry_after and isinstance(error, AdapterError) else 0.0


_SPENT = ("insufficient_quota", "billing_error", "payment_required")
"""Codes of a credit that is used up: waiting brings none."""

_SECONDS = ("base_delay", "max_delay", "jitter", "max_retry_after")
_REASONS = AdapterError.REASONS | StreamError.REASONS

Retry = RetryPolicy | Mapping[str, Any] | Literal["default"] | bool | None
OnRetry = Callable[[int, float, LLMError], None]


def policy(retry: Retry, base: Retry = "default") -> RetryPolicy:
    """The policy meant by an engine's or a call's ``retry``: False is none at all, a mapping is laid over `base`.

    A mapping asks for retries: over a `base` of False it is laid over the default.

    >>> policy({"max_attempts": 5}).max_attempts
    5

    Raises ``ValidationError("invalid_option")`` for a mapping with other names than `RetryPolicy` has fields.
    """
    match retry:
        case RetryPolicy():
            return retry
        case Mapping():
            return _laid_over(policy(base or "default"), retry)
        case False:
            return _NEVER
        case _:
            return _DEFAULT


def policy_argument(argument: Any) -> RetryPolicy:
    """The policy meant by the `policy` of an operator. Raises ``ValidationError("invalid_option")``."""
    if not isinstance(argument, RetryPolicy | Mapping | bool | None) and argument != "default":
        raise invalid_option("policy", must_be("a RetryPolicy, a mapping of its fields, True, False or None", argument))
    try:
        return policy(cast(Any, argument))
    except ValidationError as error:  # it speaks of an engine's `retry`
        errors = [(("policy", str(path[-1])), fault) for path, fault in error.errors]
        raise ValidationError(error.reason, errors=errors) from None


def _laid_over(base: RetryPolicy, given: Mapping[str, Any]) -> RetryPolicy:
    known = {spec.name for spec in fields(RetryPolicy)}
    unknown = [
        (("retry", str(name)), f"is unknown; there are {', '.join(sorted(known))}") for name in given.keys() - known
    ]
    if unknown:
        raise ValidationError("invalid_option", errors=sorted(unknown))
    return replace(base, **given)


def _reasons(held: Any) -> frozenset[Any]:
    try:
        return frozenset((held,) if isinstance(held, str) else held)
    except TypeError:
        return frozenset((held,))  # which is no reason


def _no_reasons(held: Iterable[Any]) -> str:
    named = (f"{each!r}{did_you_mean(each, _REASONS) if isinstance(each, str) else ''}" for each in held)
    return f"cannot hold {', '.join(sorted(named))}; there are {', '.join(sorted(_REASONS))}"


_DEFAULT = RetryPolicy()
_NEVER = RetryPolicy(max_attempts=1)


def retrying(
    make: Callable[[], Observable[Event]], rules: RetryPolicy, on_retry: OnRetry | None = None
) -> Stream[Event]:
    """The events of ``make()``, made again while they fail before their first content.

    ``on_retry(attempt, delay, error)`` is called before each wait.
    """
    if rules.max_attempts <= 1:
        return Stream.of(make())
    return attempting(lambda: _Retrying(make, rules, on_retry))


class _Retrying:
    late = False

    def __init__(self, make: Callable[[], Observable[Event]], rules: RetryPolicy, on_retry: OnRetry | None) -> None:
        self._make = make
        self._rules = rules
        self._on_retry = on_retry

    def source(self, attempt: int) -> Observable[Event]:
        return self._make()

    def again(self, error: Exception, attempt: int) -> float | None:
        if not self._rules.allows(error, attempt):
            return None
        assert isinstance(error, LLMError)
        seconds = self._rules.delay(error, attempt)
        provider = getattr(error, "provider", None)
        asked = f" of {provider}" if provider else ""
        log.warning("attempt %d%s failed (%s); the next one in %.1f s", attempt, asked, error, seconds)
        if self._on_retry is not None:
            self._on_retry(attempt, seconds, error)
        return seconds

    def opens(self, attempt: int) -> Iterable[Event]:
        return ()
