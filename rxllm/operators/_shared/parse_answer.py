"""Parse the text of an answer."""

from __future__ import annotations

from types import UnionType
from typing import Any

from rxllm.collector import StreamCollector
from rxllm.collector.parsed import Read, with_parsed
from rxllm.values import Response, ResponseFormat, ValidationError, is_type, reader
from rxllm.values.argument_checks import invalid_option, must_be
from rxllm.values.json_text import decode_json
from rxllm.values.schemas import decoder, unfenced

Parse = Read | ResponseFormat | UnionType | None


def parse_json(text: str) -> Any:
    """Return the JSON value in `text`, or raise `invalid_output`."""
    try:
        return decode_json(unfenced(text))
    except Exception as error:  # half a surrogate is not a DecodeError
        raise invalid_output(f"the answer is not JSON: {error}", text) from error


def invalid_output(why: str, text: str, **metadata: Any) -> ValidationError:
    """Return the error for an answer that does not parse; its metadata keeps the text."""
    return ValidationError("invalid_output", why, metadata={"text": text, **metadata})


def text_parser(name: str, target: Any, *, is_element: bool = False) -> Read:
    """Return the function that parses JSON text as `target`.

    A target is a ``response_format``, which includes types, None for plain JSON, or a function of the text. The parser
    raises ``ValidationError("invalid_output")``, or what that function raises. The text is a whole answer, or
    `is_element`, one of its elements.

    Raises ``ValidationError("invalid_option")`` for the option `name` if `target` is none of these.
    """
    if not is_type(target) and callable(target):
        return target
    hint = Any if target is None else target
    try:
        parser = decoder(hint) if is_element and is_type(hint) else reader(hint)
    except Exception as error:  # msgspec's own, and the NameError of a hint that cannot be read
        raise invalid_option(name, f"{must_be('a type that JSON can be parsed as', target)}: {error}") from error
    if not callable(parser):
        raise invalid_option(name, must_be("a type that JSON can be parsed as, a function or a format of JSON", target))
    return parser


def answer_parser(parse: Parse) -> Read | None:
    """Return the parser for the option `parse`, as ``operators.parsed(parse)`` has it; None if text stays text.

    Raises ``ValidationError("invalid_option")`` if `parse` makes no sense.
    """
    match parse:
        case None | "text" | {"type": "text"}:
            return None
        case _:
            return text_parser("parse", parse)


def final_answer(state: StreamCollector) -> Response[Any]:
    """Return the response that has the answer: in a chat the final one. Raises the error that ended the stream."""
    if state.chat_result is None:
        return state.to_response().raise_for_error()
    return state.chat_result.raise_for_error().final_response or Response()


def parsed_value(response: Response[Any], read: Read) -> Any:
    """Return the value of an answer.

    Raises ``ValidationError("invalid_output")``, as `with_parsed` does; also for a response that calls tools.
    """
    if response.tool_calls:
        metadata = {"text": response.output_text, "finish_reason": response.finish_reason, "usage": response.usage}
        raise ValidationError("invalid_output", "the response asks for tools instead of answering", metadata=metadata)
    return with_parsed(response, read).parsed
