from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given

from rxllm.testing import strategies
from rxllm.values import (
    AdapterError,
    EngineError,
    ImageAdapterError,
    LLMError,
    SessionError,
    StreamError,
    ToolError,
    ValidationError,
)

CLASSES = [AdapterError, ImageAdapterError, StreamError, EngineError, ValidationError, ToolError, SessionError]


@pytest.mark.parametrize("cls", CLASSES)
def test_reasons_are_a_closed_set(cls: Any) -> None:
    for reason in cls.REASONS:
        assert cls(reason).reason == reason
    with pytest.raises(ValueError, match=f"'boredom' is not a valid reason for {cls.__name__}; the reasons are"):
        cls("boredom")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (AdapterError("timeout"), "adapter error: timeout"),
        (AdapterError("timeout", provider="openai"), "adapter error (openai): timeout"),
        (ImageAdapterError("timeout", provider="openai"), "image adapter error (openai): timeout"),
        (StreamError("truncated"), "stream error: truncated"),
        (EngineError("missing_key", provider="openai"), "engine error: missing_key"),
        (ToolError("timeout"), "tool error: timeout"),
        (ToolError("timeout", tool_name="add"), "tool error (add): timeout"),
        (SessionError("no_pending_tool_call"), "session error: no_pending_tool_call"),
        (ValidationError("invalid_tool"), "validation failed: invalid_tool"),
        (
            ValidationError("invalid_thread", errors=[(("messages", 0, "role"), "unknown"), ((), "odd")]),
            "messages.0.role unknown; value odd",
        ),
        (ValidationError("invalid_tool", "no", errors=[(("name",), "empty")]), "no [at name]"),
        (StreamError("timeout", "too slow"), "too slow"),
    ],
)
def test_every_error_says_what_is_wrong(error: LLMError, message: str) -> None:
    assert str(error) == message


def test_all_are_one_family() -> None:
    assert all(issubclass(cls, LLMError) and issubclass(cls, Exception) for cls in CLASSES)
    assert issubclass(ImageAdapterError, AdapterError)


def test_errors_are_equal_by_class_and_fields() -> None:
    assert AdapterError("timeout", status=504) == AdapterError("timeout", status=504)
    assert AdapterError("timeout", status=504) != AdapterError("timeout", status=503)
    assert AdapterError("timeout") != ImageAdapterError("timeout")
    assert AdapterError("timeout", metadata={"a": 1}) != AdapterError("timeout")
    assert AdapterError("timeout") != "timeout"


@given(strategies.errors)
def test_errors_survive_pickling_and_copying(error: LLMError) -> None:
    for restored in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert restored == error
        assert hash(restored) == hash(error)
        assert str(restored) == str(error)


def test_the_cause_is_no_field() -> None:
    try:
        try:
            raise OSError("sk-secret")
        except OSError as cause:
            raise AdapterError("network_error") from cause
    except AdapterError as error:
        caught = error
    assert isinstance(caught.__cause__, OSError)
    assert caught == AdapterError("network_error")
    assert "secret" not in repr(caught) + str(caught) + str(caught.fields())


def test_a_repr_is_class_reason_and_message() -> None:
    error = AdapterError("timeout", "too slow", metadata={"authorization": "sk-secret"})
    assert repr(error) == "AdapterError('timeout', 'too slow')"


def test_paths_grow_outwards() -> None:
    error = ValidationError("invalid_tool", errors=[(("name",), "empty")]).under(0).under("tools")
    assert error.errors == ((("tools", 0, "name"), "empty"),)


def test_metadata_is_a_copy() -> None:
    metadata = {"a": 1}
    error = StreamError("timeout", metadata=metadata)
    metadata["a"] = 2
    assert error.metadata == {"a": 1}


def test_the_base_class_says_what_to_raise() -> None:
    with pytest.raises(ValueError, match=r"write AdapterError\(reason, message\) or StreamError\(reason, message\)"):
        LLMError("the server broke")
