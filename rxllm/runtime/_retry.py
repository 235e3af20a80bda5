"""Retry calls that fail before their first content: the policy, and the stream that follows it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import fields, force_setattr, replace
from reactivex import Observable

from rxllm.events import Event
from rxllm.runtime._attempts import attempting
from rxllm.runtime._scope import current_scope
from rxllm.runtime._stream import Stream
from rxllm.values import AdapterError, LLMError, StreamError, ValidationError
from rxllm.values.argument_checks import did_you_mean, invalid_option, is_count, is_seconds, must_be

log = logging.getLogger("rxllm")


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often to try, and how many seconds to wait: `base_delay`, doubled up to `max_delay`, plus up to `jitter`.

    A longer Retry-After of the provider is obeyed, but if it exceeds `max_retry_after` the failure is passed on.
    `retry_on` holds reasons of `AdapterError` and `StreamError`; used-up credit is never retried. `max_attempts` counts
    the first attempt too, so that 1 never retries.

    Raises ``ValidationError("invalid_option")`` for wrong values.
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
        checks = {name: (is_seconds(getattr(self, name)), "a number of seconds, 0 or more") for name in _SECONDS}
        checks["max_attempts"] = (
            is_count(self.max_attempts),
            "a whole number of at least 1, which counts the first attempt",
        )
        checks["respect_retry_after"] = type(self.respect_retry_after) is bool, "True or False"
        for name, (fits, expected) in checks.items():
            if not fits:
                raise invalid_option(("retry", name), must_be(expected, getattr(self, name)))
        if unknown := self.retry_on - _REASONS:
            raise invalid_option(("retry", "retry_on"), _unknown_reasons(unknown))

    def delay(self, error: LLMError, attempt: int) -> float:
        """Return the seconds to wait after the failed `attempt`; the first is 1."""
        backoff = min(self.max_delay, self.base_delay * 2.0 ** min(attempt - 1, 64))
        return max(self._retry_after(error), backoff) + random.uniform(0.0, self.jitter)

    def allows(self, error: BaseException, attempt: int) -> bool:
        """Return whether another attempt follows the failed `attempt`."""
        if not isinstance(error, AdapterError | StreamError) or attempt >= self.max_attempts:
            return False
        if isinstance(error, AdapterError) and (error.status == 402 or error.code in _SPENT):
            return False
        return error.reason in self.retry_on and self._retry_after(error) <= self.max_retry_after

    def _retry_after(self, error: LLMError) -> float:
        return (error.retry_after or 0.0) if self.respect_retry_after and isinstance(error, AdapterError) else 0.0


_SPENT = ("insufficient_quota", "billing_error", "payment_required")
"""Error codes for used-up credit, which waiting does not refill."""

_SECONDS = ("base_delay", "max_delay", "jitter", "max_retry_after")
_REASONS = AdapterError.REASONS | StreamError.REASONS

Retry = RetryPolicy | Mapping[str, Any] | Literal["default"] | bool | None
OnRetry = Callable[[int, float, LLMError], None]


def policy(retry: Retry, base: Retry = "default") -> RetryPolicy:
    """Return the policy for the ``retry`` of an engine or a call: False never retries, a mapping overrides `base`.

    With a `base` of False, a mapping overrides the default.

    >>> policy({"max_attempts": 5}).max_attempts
    5

    Raises ``ValidationError("invalid_option")`` for anything else, and for a name that is not a field of `RetryPolicy`.
    """
    match retry:
        case RetryPolicy():
            return retry
        case Mapping():
            return _override(policy(base or "default"), retry)
        case False:
            return _NEVER
        case None | True | "default":
            return _DEFAULT
        case _:
            expected = "a RetryPolicy, a mapping of its fields, True, False or None"
            raise invalid_option(("retry",), must_be(expected, retry))


def policy_argument(argument: Any) -> RetryPolicy:
    """Return the policy for the `policy` of an operator. Raises ``ValidationError("invalid_option")``."""
    try:
        return policy(argument)
    except ValidationError as error:  # whose paths begin with the `retry` of an engine
        errors = [(("policy", *path[1:]), fault) for path, fault in error.errors]
        raise ValidationError(error.reason, errors=errors) from None


def _override(base: RetryPolicy, values: Mapping[str, Any]) -> RetryPolicy:
    names = {field.name for field in fields(RetryPolicy)}
    there = f"there are {', '.join(sorted(names))}"
    if unknown := sorted(map(str, values.keys() - names)):
        errors = [(("retry", name), f"is unknown{did_you_mean(name, names)}; {there}") for name in unknown]
        raise ValidationError("invalid_option", errors=errors)
    return replace(base, **values)


def _reasons(value: Any) -> frozenset[Any]:
    try:
        return frozenset((value,) if isinstance(value, str) else value)
    except TypeError:
        return frozenset((value,))  # not iterable, so not a reason either: it is reported as unknown


def _unknown_reasons(reasons: Iterable[Any]) -> str:
    names = (f"{reason!r}{did_you_mean(reason, _REASONS) if isinstance(reason, str) else ''}" for reason in reasons)
    return f"cannot hold {', '.join(sorted(names))}; there are {', '.join(sorted(_REASONS))}"


_DEFAULT = RetryPolicy()
_NEVER = RetryPolicy(max_attempts=1)


def retrying(
    make: Callable[[], Observable[Event]], rules: RetryPolicy, on_retry: OnRetry | None = None
) -> Stream[Event]:
    """Return the events of ``make()``, which is called again while its stream fails before its first content.

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
        for before_retry in current_scope.get().before_retry:
            seconds = max(seconds, before_retry(error, seconds))
        provider = getattr(error, "provider", None)
        source = f" of {provider}" if provider else ""
        log.warning("attempt %d%s failed (%s); the next one in %.1f s", attempt, source, error, seconds)
        if self._on_retry is not None:
            self._on_retry(attempt, seconds, error)
        return seconds

    def opens(self, attempt: int) -> Iterable[Event]:
        return ()
