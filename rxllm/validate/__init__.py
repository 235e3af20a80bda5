"""The rules that values keep before they are sent.

Each function gives None, or raises one ``ValidationError`` that lists all faults: ``errors`` pairs a path with what is
wrong there, ``(("messages", 0, "role"), "unknown")``. Nothing is checked that only a provider can know.

==========================  ===========================================================================================
`request`                   messages ``empty``; tools ``duplicate_name``; temperature ``out_of_range`` (0 to 2);
                            max_tokens ``must_be_positive``; response_format ``invalid_shape``;
                            structured_finalize ``requires_json_schema``; and what its messages and tools break
`thread`                    what its messages break
`message`                   role ``unknown``; content ``invalid_type``, ``invalid_part_type``; tool_call_id ``required``
`tool`                      name ``empty``, ``reserved_tool_name``, ``invalid_format``; description ``not_a_string``;
                            schema ``not_a_map``
`session`                   status ``unknown``; pending_question and pending_tool_calls ``required_for_status``;
                            metadata ``error_required_for_status``; and what the messages of its thread break
`image_request`             operation ``unknown``; n ``must_be_positive``; size ``invalid_shape``; style, background and
                            response_format ``unknown``; input_images and mask ``invalid_image``. To generate: prompt
                            ``required_for_operation``, input_images ``must_be_empty``; to edit: prompt
                            ``required_for_operation``, input_images ``invalid_count`` without any; for a variation:
                            prompt ``not_allowed_for_operation``, input_images ``invalid_count`` but for one; a mask
                            but to edit ``not_allowed_for_operation``
`capabilities`              what a model's entry in ``rxllm.models`` says that it cannot do, see there
everywhere                  ``wrong_type``
==========================  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator

from rxllm.validate._chat import (
    RESERVED_NAMES,
    capability_faults,
    is_response_format,
    message_faults,
    request_faults,
    session_faults,
    thread_faults,
    tool_faults,
)
from rxllm.validate._faults import Fault
from rxllm.validate._images import image_request_faults
from rxllm.values import ImageRequest, Message, ModelInfo, Request, Session, Thread, Tool, ValidationError

__all__ = [
    "RESERVED_NAMES",
    "Fault",
    "capabilities",
    "image_request",
    "is_response_format",
    "message",
    "request",
    "session",
    "thread",
    "tool",
]


def request(value: Request) -> None:
    """Raises ``ValidationError("invalid_request")``, unless a model could be asked this."""
    _raise("invalid_request", request_faults(value))


def thread(value: Thread) -> None:
    """Raises ``ValidationError("invalid_thread")``, unless every message could be sent. An empty thread is fine."""
    _raise("invalid_thread", thread_faults(value))


def message(value: Message) -> None:
    """Raises ``ValidationError("invalid_message")``, unless it could be sent."""
    _raise("invalid_message", message_faults(value))


def tool(value: Tool) -> None:
    """Raises ``ValidationError("invalid_tool")``, unless a model could be told of it."""
    _raise("invalid_tool", tool_faults(value))


def session(value: Session) -> None:
    """Raises ``ValidationError("invalid_session")``, unless its fields are what its status promises."""
    _raise("invalid_session", session_faults(value))


def image_request(value: ImageRequest) -> None:
    """Raises ``ValidationError("invalid_image_request")``, unless an image model could be asked this."""
    _raise("invalid_image_request", image_request_faults(value))


def capabilities(value: Request, model: ModelInfo) -> None:
    """Raises ``ValidationError("unsupported_capability")`` where `model` is known not to do what the request asks."""
    errors = tuple(capability_faults(value, model))
    if errors:
        named = ", ".join(f"{'.'.join(map(str, path))} ({what})" for path, what in errors)
        message = f"{model.name} cannot do what is asked, as rxllm.models says: {named}"
        raise ValidationError("unsupported_capability", message, errors=errors)


def _raise(reason: str, faults: Iterator[Fault]) -> None:
    if errors := tuple(faults):
        raise ValidationError(reason, errors=errors)
