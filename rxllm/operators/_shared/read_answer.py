"""How the folds read an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import UnionType
from typing import Any

from rxllm.collector import is_unfinished
from rxllm.operators._shared.read_as import read_as
from rxllm.values import ChatResult, LLMError, Response, ResponseFormat, StepResult, ValidationError

Read = Callable[[str], Any]
Parse = Read | ResponseFormat | UnionType | None


def reading(parse: Parse) -> Read | None:
    """How the text is read, which is as ``operators.parsed(parse)`` does it; None where it is to be just text.

    Raises ``ValidationError("invalid_option")`` for a `parse` that is no way to read it.
    """
    match parse:
        case None | "text" | {"type": "text"}:
            return None
        case _:
            return read_as("parse", parse)


def parsed(response: Response[Any], read: Read) -> Response[Any]:
    """`response` with its `parsed`; one that failed or that is not finished as it is.

    Raises ``ValidationError("invalid_output")``, whose metadata keeps the text, the finish reason and the usage.
    """
    if response.finish_reason == "error" or response.tool_calls:
        return response
    kept = {"text": response.output_text, "finish_reason": response.finish_reason, "usage": response.usage}
    try:
        return replace(response, parsed=read(response.output_text))
    except ValidationError as error:
        if error.reason != "invalid_output":
            raise
        raise ValidationError(error.reason, error.message, errors=error.errors, metadata=kept) from error.__cause__
    except LLMError:
        raise
    except Exception as error:
        message = f"the answer does not parse: {type(error).__name__}: {error}"
        raise ValidationError("invalid_output", message, metadata=kept) from error


def parsed_step(result: StepResult[Any], read: Read) -> StepResult[Any]:
    """`result` with its response's `parsed`, or its `error`: what the step did is not lost with an answer."""
    return replace(result, response=_settled(result.response, read))


def parsed_chat(result: ChatResult[Any], read: Read) -> ChatResult[Any]:
    """`result` with its final response's `parsed`, or its `error`; one that was cut or halted as it is."""
    if result.final_response is None or result.halted_reason != "completed":
        return result
    last = _settled(result.final_response, read)
    steps = tuple(replace(each, response=last) for each in result.steps[-1:])
    made = replace(result, final_response=last, steps=(*result.steps[:-1], *steps))
    return made if last.error is None else replace(made, halted_reason="error", error=last.error)


def _settled(response: Response[Any], read: Read) -> Response[Any]:
    if is_unfinished(response):
        return response
    try:
        return parsed(response, read)
    except LLMError as error:
        return replace(response, finish_reason="error", error=error)
