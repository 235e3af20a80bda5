"""Functions that set the parsed answer of a response or a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rxllm.collector import is_unfinished
from rxllm.events import REFUSED, MessageCompleted
from rxllm.values import ChatResult, LLMError, Response, StepResult, ValidationError
from rxllm.values.argument_checks import shorten

Read = Callable[[str], Any]


def with_parsed(response: Response[Any], read: Read) -> Response[Any]:
    """Return `response` with `parsed` set to the value that `read` returns for its text.

    A response that failed or that calls tools is returned unchanged. Raises ``ValidationError("invalid_output")`` if
    `read` rejects the text. The error's metadata holds the text, the finish reason and the usage; see also
    `unreadable`.
    """
    if response.finish_reason == "error" or response.tool_calls:
        return response
    metadata = {"text": response.output_text, "finish_reason": response.finish_reason, "usage": response.usage}
    try:
        return replace(response, parsed=read(response.output_text))
    except ValidationError as error:
        if error.reason != "invalid_output":
            raise
        known = ValidationError(error.reason, error.message, errors=error.errors, metadata=metadata)
        raise unreadable(known, response) from error.__cause__
    except LLMError:
        raise
    except Exception as error:
        message = f"the answer cannot be parsed: {type(error).__name__}: {error}"
        raise unreadable(ValidationError("invalid_output", message, metadata=metadata), response) from error


def unreadable(error: ValidationError, end: Response[Any] | MessageCompleted) -> ValidationError:
    """Return `error` with the reason why the answer cannot be parsed, if its `end` shows that reason.

    If the model refused to answer or a filter stopped the answer, the error's metadata also holds what the provider
    reports about this.
    """
    if end.finish_reason == "length":
        message = f"the answer is cut off at its token limit; pass a larger max_tokens ({error.message})"
        return ValidationError(error.reason, message, errors=error.errors, metadata=error.metadata)
    if end.finish_reason != "content_filter":
        return error
    said = [str(text) for text in (error.metadata.get("text"), end.raw_finish_reason) if text and text != "stop"]
    shown = f": {shorten(', '.join(said), 200)}" if said else ""
    message = f"{REFUSED}{shown}; see the error's metadata"
    metadata = {**end.metadata, **error.metadata, "raw_finish_reason": end.raw_finish_reason}
    return ValidationError(error.reason, message, metadata=metadata)


def step_with_parsed(result: StepResult[Any], read: Read) -> StepResult[Any]:
    """Set `parsed` in the step's response. If the answer cannot be parsed, set `error` instead."""
    return replace(result, response=_parsed_or_failed(result.response, read))


def chat_with_parsed(result: ChatResult[Any], read: Read) -> ChatResult[Any]:
    """Set `parsed` in the final response of a completed chat. If the answer cannot be parsed, set `error` instead."""
    if result.final_response is None or result.halted_reason != "completed":
        return result
    final = _parsed_or_failed(result.final_response, read)
    last_step = tuple(replace(step, response=final) for step in result.steps[-1:])
    result = replace(result, final_response=final, steps=(*result.steps[:-1], *last_step))
    return result if final.error is None else replace(result, halted_reason="error", error=final.error)


def _parsed_or_failed(response: Response[Any], read: Read) -> Response[Any]:
    if is_unfinished(response):
        return response
    try:
        return with_parsed(response, read)
    except LLMError as error:
        return replace(response, finish_reason="error", error=error)
