"""The error classes, each with a fixed set of reasons.

::

    LLMError                   the base class of all errors that rxllm raises or emits
    ├── AdapterError           the provider rejected the request, or could not be reached
    │   └── ImageAdapterError  the same, for an image call
    ├── StreamError            the stream failed, or a guard or a budget stopped it
    ├── EngineError            the call is misconfigured: for example, it has no adapter or no API key
    ├── ValidationError        an argument or a value is invalid; `errors` lists the faults
    ├── ToolError              a tool failed
    ├── SessionError           the session's status does not allow the operation
    └── RunError               a durable run, or a store of runs or sessions, does not allow the operation

* Two errors are equal if they have the same class and equal fields.
* Errors can be hashed and pickled, and they survive a JSON round trip.
* An error's cause is kept only in ``__cause__``.
* If the transport failed, ``__context__`` is the transport's own error.
* All times are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self, TypeVar

E = TypeVar("E", bound="LLMError")

Path = tuple[str | int, ...]

ERROR_CLASSES: dict[str, type[LLMError]] = {}


def place(path: Path) -> str:
    """Return a path as text, with lone surrogates escaped."""
    return ".".join(map(str, path)).encode(errors="backslashreplace").decode()


class LLMError(Exception):
    """The base class of rxllm's errors.

    The `reason` must be one of the class's `REASONS`. Any other reason raises ``ValueError``.
    """

    REASONS: ClassVar[frozenset[str]] = frozenset()
    FIELDS: ClassVar[tuple[str, ...]] = ()
    TITLE: ClassVar[str] = "error"

    reason: str
    message: str
    metadata: Mapping[str, Any]
    is_logged: bool = False
    """Whether rxllm has already logged the error in this process."""

    def __init_subclass__(cls, *, is_variant: bool = False) -> None:
        """Register the class for JSON. A variant is written and shown under the name of its first base class."""
        if is_variant:
            cls.__name__ = cls.__bases__[0].__name__
        else:
            ERROR_CLASSES[cls.__name__] = cls

    def __init__(self, reason: str, message: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> None:
        if type(self) is LLMError:
            raise ValueError(
                "LLMError is a base class; write AdapterError(reason, message) or StreamError(reason, message)"
            )
        if reason not in self.REASONS:
            known = ", ".join(sorted(self.REASONS))
            fault = f"{reason!r} is not a valid reason for {type(self).__name__}"
            raise ValueError(f"{fault}; the reasons are {known}, and your own words are the second argument")
        self.reason = reason
        self.message = self.default_message() if message is None else message
        self.metadata = dict(metadata or {})
        super().__init__(self.message)

    def default_message(self) -> str:
        return f"{self.TITLE}: {self.reason}"

    def fields(self) -> dict[str, Any]:
        """Return the fields that are not empty, by name."""
        values = {"reason": self.reason, "message": self.message, "metadata": self.metadata}
        values |= {name: getattr(self, name) for name in self.FIELDS}
        return {name: value for name, value in values.items() if value not in (None, {}, ())}

    @classmethod
    def from_fields(cls, named: Mapping[str, Any]) -> Self:
        """Return an error made from the fields in `named`. Unknown fields are ignored."""
        return cls(**{k: v for k, v in named.items() if k in {"reason", "message", "metadata", *cls.FIELDS}})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, LLMError) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash((type(self), self.reason))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_fields, (self.fields(),))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason!r}, {self.message!r})"


class AdapterError(LLMError):
    """The provider rejected the request, or could not be reached.

    `status` is the HTTP status. `code` is the provider's error code. `retry_after` is how many seconds the provider
    asks you to wait. `request_id` is the provider's id for the call.
    """

    TITLE = "adapter error"
    FIELDS = ("provider", "status", "code", "retry_after", "request_id")
    REASONS = frozenset(
        {
            "rate_limited",
            "authentication_failed",
            "invalid_request",
            "provider_unavailable",
            "context_length_exceeded",
            "content_filter",
            "timeout",
            "network_error",
            "malformed_response",
            "unsupported_feature",
            "no_scripted_response",
            "unknown",
        }
    )

    def __init__(
        self,
        reason: str,
        message: str | None = None,
        *,
        provider: str | None = None,
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.provider = provider
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.request_id = request_id
        super().__init__(reason, message, metadata=metadata)

    def default_message(self) -> str:
        return f"{self.TITLE} ({self.provider}): {self.reason}" if self.provider else super().default_message()


class ImageAdapterError(AdapterError):
    """An `AdapterError` from an image call."""

    TITLE = "image adapter error"
    REASONS = (AdapterError.REASONS - {"no_scripted_response"}) | {"unsupported_operation"}


class StreamError(LLMError):
    """The stream failed, or a guard or a budget stopped it.

    This can happen before the first event.
    """

    TITLE = "stream error"
    FIELDS = ("provider", "event_index")
    REASONS = frozenset(
        {
            "adapter_error",
            "cancelled",
            "timeout",
            "malformed_event",
            "truncated",
            "oversized_frame",
            "overflow",
            "budget_exceeded",
            "guard_tripped",
            "guard_failed",
            "guard_late",
            "restarted",
            "unknown",
        }
    )

    def __init__(
        self,
        reason: str,
        message: str | None = None,
        *,
        provider: str | None = None,
        event_index: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.provider = provider
        self.event_index = event_index
        super().__init__(reason, message, metadata=metadata)


class EngineError(LLMError):
    """The call cannot start because it is misconfigured."""

    TITLE = "engine error"
    FIELDS = ("provider",)
    REASONS = frozenset(
        {
            "missing_adapter",
            "missing_stream_adapter",
            "missing_model",
            "missing_key",
            "unknown_tool",
            "invalid_engine",
            "unsupported_response_format",
            "no_image_adapter",
            "missing_dependency",
            "unknown_provider",
            "unknown_option",
            "wrong_loop",
            "missing_tool_results",
            "journal_in_use",
            "journal_failed",
        }
    )

    def __init__(
        self,
        reason: str,
        message: str | None = None,
        *,
        provider: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.provider = provider
        super().__init__(reason, message, metadata=metadata)


class ValidationError(LLMError):
    """An argument or a value is invalid.

    `errors` is a tuple of (path, fault) pairs, such as ``(("messages", 0), "...")``.
    """

    TITLE = "validation failed"
    FIELDS = ("errors",)
    REASONS = frozenset(
        {
            "invalid_request",
            "invalid_message",
            "invalid_tool",
            "invalid_thread",
            "invalid_session",
            "invalid_session_input",
            "unsupported_capability",
            "invalid_image_request",
            "invalid_output",
            "invalid_option",
            "not_serializable",
        }
    )

    def __init__(
        self,
        reason: str,
        message: str | None = None,
        *,
        errors: Iterable[tuple[Path, str]] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.errors = tuple((tuple(path), fault) for path, fault in errors)
        super().__init__(reason, message, metadata=metadata)

    def default_message(self) -> str:
        details = "; ".join(f"{place(path) or 'value'} {fault}" for path, fault in self.errors)
        return details or super().default_message()

    def __str__(self) -> str:
        places = {place(path) for path, _ in self.errors if path}
        places = {place for place in places if f"{place}: " not in self.message}
        if not places or "(" in self.message or self.message == self.default_message():
            return self.message
        return f"{self.message} [at {', '.join(sorted(places))}]"

    def under(self, key: str | int) -> ValidationError:
        """Return a copy of the error with `key` added to the start of every path."""
        errors = [((key, *path), fault) for path, fault in self.errors]
        message = None if self.message == self.default_message() else self.message
        return ValidationError(self.reason, message, errors=errors, metadata=self.metadata)


class ToolError(LLMError):
    """A tool failed.

    The model receives the error, unless ``on_tool_error`` decides otherwise.
    """

    TITLE = "tool error"
    FIELDS = ("tool_name", "tool_call_id")
    REASONS = frozenset(
        {
            "handler_raised",
            "handler_exit",
            "timeout",
            "invalid_return",
            "not_found",
            "encoding_failed",
            "invalid_arguments",
            "cancelled",
            "denied",
        }
    )

    def __init__(
        self,
        reason: str,
        message: str | None = None,
        *,
        tool_name: str | None = None,
        tool_call_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.tool_name = tool_name
        self.tool_call_id = tool_call_id
        super().__init__(reason, message, metadata=metadata)

    def default_message(self) -> str:
        return f"{self.TITLE} ({self.tool_name}): {self.reason}" if self.tool_name else super().default_message()


class SessionError(LLMError):
    """The session's status does not allow the operation."""

    TITLE = "session error"
    REASONS = frozenset(
        {"session_in_error_state", "unknown_tool_call_id", "invalid_status_for_operation", "no_pending_tool_call"}
    )


class RunError(LLMError):
    """The operation is not possible in the current state of a durable run or a store."""

    TITLE = "run error"
    FIELDS = ("run_id",)
    REASONS = frozenset(
        {
            "exists",
            "unknown_run",
            "unknown_factory",
            "factory_failed",
            "lease_lost",
            "cancelled",
            "diverged",
            "too_many_attempts",
            "conflict",
            "unreadable",
            "rolled_back",
            "store_unavailable",
        }
    )

    def __init__(
        self,
        reason: str,
        message: str | None = None,
        *,
        run_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.run_id = run_id
        super().__init__(reason, message, metadata=metadata)

    def default_message(self) -> str:
        return f"{self.TITLE} ({self.run_id}): {self.reason}" if self.run_id else super().default_message()


def with_origin(error: E, original: LLMError) -> E:
    """Copy the cause and context of `original` to `error`, and return `error`."""
    error.__cause__, error.__context__ = original.__cause__, original.__context__
    error.__suppress_context__ = original.__suppress_context__
    return error


def as_llm_error(error: Exception) -> LLMError:
    """Return `error` itself if it is an `LLMError`.

    Otherwise, return a ``StreamError("unknown")`` whose cause is `error`.
    """
    if isinstance(error, LLMError):
        return error
    wrapped = StreamError("unknown", f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


for _cls in (LLMError, *ERROR_CLASSES.values()):
    _cls.__module__ = "rxllm"  # users import them from ``rxllm``
