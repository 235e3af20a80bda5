"""The rules that values must keep to be sent.

Each function returns None, or raises one ``ValidationError`` that lists all faults: ``errors`` pairs a path with the
code of what is wrong there, ``(("messages", 0, "role"), "unknown")``; the message says it in words. What only a
provider can know is not checked.

==========================  ===========================================================================================
`request`                   messages ``empty``; tools ``duplicate_name``; temperature ``out_of_range`` (0 to 2);
                            top_p ``out_of_range`` (above 0 to 1); max_tokens ``must_be_positive``;
                            response_format ``invalid_shape``;
                            structured_finalize ``requires_json_schema``; the faults of its messages and tools; and
                            those of a thread, unless its `options` have ``previous_response_id`` or ``conversation``
`thread`                    the faults of its messages; tool_call_id ``result_without_call`` of a tool message whose
                            call is in no earlier message
`message`                   role ``unknown``; content ``invalid_type``, ``invalid_part_type``; tool_call_id ``required``
`tool`                      name ``empty``, ``reserved_tool_name``, ``invalid_format``; description ``not_a_string``;
                            schema ``not_a_map``
`session`                   status ``unknown``; pending_question and pending_tool_calls ``required_for_status``;
                            metadata ``error_required_for_status``; and the faults of its thread
`image_request`             operation ``unknown``; n ``must_be_positive``; size ``invalid_shape``; style, background and
                            response_format ``unknown``; input_images and mask ``invalid_image``. To generate: prompt
                            ``required_for_operation``, input_images ``must_be_empty``; to edit: prompt
                            ``required_for_operation``, input_images ``invalid_count`` without any; for a variation:
                            prompt ``not_allowed_for_operation``, input_images ``invalid_count`` unless one; a mask
                            except to edit ``not_allowed_for_operation``
`capabilities`              what the model cannot do according to its entry in ``rxllm.models``, see there
`data`                      where JSON data does not fit a JSON schema, in jsonschema-rs's words
everywhere                  ``wrong_type``
==========================  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rxllm.validate._rules import (
    RESERVED_NAMES,
    Fault,
    capability_faults,
    image_request_faults,
    in_words,
    is_response_format,
    is_temperature,
    is_top_p,
    message_faults,
    request_faults,
    session_faults,
    thread_faults,
    tool_faults,
)
from rxllm.values import ImageRequest, Message, ModelInfo, Request, Session, Thread, Tool, ValidationError
from rxllm.values.argument_checks import invalid_option
from rxllm.values.json_text import described
from rxllm.values.schema_checks import schema_faults

__all__ = [
    "RESERVED_NAMES",
    "Fault",
    "capabilities",
    "data",
    "image_request",
    "is_response_format",
    "is_temperature",
    "is_top_p",
    "message",
    "request",
    "session",
    "thread",
    "tool",
]


_ROOTS = {
    "invalid_request": "a Request",
    "invalid_thread": "a Thread",
    "invalid_message": "a Message",
    "invalid_tool": "a Tool",
    "invalid_session": "a Session",
    "invalid_image_request": "an ImageRequest",
}
"""What each function takes, by the reason of its error."""


def request(value: Request) -> None:
    """Raise ``ValidationError("invalid_request")`` unless the request could be sent to a model."""
    _raise("invalid_request", value, request_faults)


def thread(value: Thread) -> None:
    """Raise ``ValidationError("invalid_thread")`` unless every message could be sent. An empty thread is valid."""
    _raise("invalid_thread", value, thread_faults)


def message(value: Message) -> None:
    """Raise ``ValidationError("invalid_message")`` unless the message could be sent."""
    _raise("invalid_message", value, message_faults)


def tool(value: Tool) -> None:
    """Raise ``ValidationError("invalid_tool")`` unless the tool could be offered to a model."""
    _raise("invalid_tool", value, tool_faults)


def session(value: Session) -> None:
    """Raise ``ValidationError("invalid_session")`` unless its fields are what its status requires."""
    _raise("invalid_session", value, session_faults)


def image_request(value: ImageRequest) -> None:
    """Raise ``ValidationError("invalid_image_request")`` unless the request could be sent to an image model."""
    _raise("invalid_image_request", value, image_request_faults)


def capabilities(value: Request, model: ModelInfo) -> None:
    """Raise ``ValidationError("unsupported_capability")`` if `model` is known to lack what the request needs."""
    errors = tuple(capability_faults(value, model))
    if errors:
        faults = ", ".join(f"{'.'.join(map(str, path))} ({fault})" for path, fault in errors)
        message = f"{model.name} cannot do what the request needs, according to rxllm.models: {faults}"
        raise ValidationError("unsupported_capability", message, errors=errors)


def data(value: Any, schema: Mapping[str, Any]) -> None:
    """Raise ``ValidationError("invalid_output")`` unless the JSON data `value` fit the JSON `schema`.

    Raises ``ValidationError("invalid_option")`` for a wrong schema. Without jsonschema-rs, which ``rxllm[schema]``
    installs, nothing is checked, and the log says so once.
    """
    try:
        errors = schema_faults(schema, value)
    except Exception as error:  # jsonschema-rs's own
        fault = f"must be a JSON schema: {str(error).partition(chr(10))[0]}"
        raise invalid_option("schema", fault) from error
    if errors:
        message = f"{ValidationError.TITLE}: invalid_output ({described(errors)})"
        raise ValidationError("invalid_output", message, errors=errors)


def _raise(reason: str, value: Any, faults_of: Callable[[Any], Iterator[Fault]]) -> None:
    if errors := tuple(faults_of(value)):
        expected = _ROOTS[reason]
        faults = "; ".join(in_words(value, path, code, expected) for path, code in errors)
        raise ValidationError(reason, f"{ValidationError.TITLE}: {reason} ({faults})", errors=errors)
