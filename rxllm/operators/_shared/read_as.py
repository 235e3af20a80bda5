"""What JSON text is read as."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, cast, get_origin

import msgspec

from rxllm.values import ValidationError, is_format_class, reader
from rxllm.values._schema import unfenced
from rxllm.values.arguments import invalid_option


def read_as(name: str, wanted: Any) -> Callable[[str], Any]:
    """How JSON text is read as `wanted`: a ``response_format``, any other type that msgspec knows, also with pydantic
    models in it, a function of the text, or None for plain JSON. It raises ``ValidationError("invalid_output")``, or
    what the function raises.

    Raises ``ValidationError("invalid_option")`` naming the option `name` for what is none of these.
    """
    if _is_function(wanted):
        return wanted
    if isinstance(wanted, str | Mapping) or is_format_class(wanted):
        found = reader(cast(Any, wanted))
        if found is None:
            raise invalid_option(name, f"{wanted!r} is not a format that JSON is read in")
        return found
    try:
        decoder = msgspec.json.Decoder[Any](Any if wanted is None else wanted, dec_hook=_of_another)
    except Exception as error:  # msgspec's own, and the NameError of a hint that cannot be read
        raise invalid_option(name, f"{wanted!r} is no type that JSON is read as: {error}") from error

    def read(text: str) -> Any:
        try:
            return decoder.decode(unfenced(text))
        except Exception as error:
            why = str(error)
            raise ValidationError("invalid_output", f"the answer does not fit: {why}", errors=[((), why)]) from error

    return read


def _is_function(wanted: Any) -> TypeGuard[Callable[[str], Any]]:
    """Whether it is called with the text. Types can be called too: classes, aliases, what `typing` makes."""
    is_type = isinstance(wanted, type) or get_origin(wanted) is not None or type(wanted).__module__ == "typing"
    return callable(wanted) and not is_type


def _of_another(wanted: Any, held: Any) -> Any:
    """`held` as a type that msgspec does not know: a pydantic model. Any other is what it is, and does not fit."""
    read = getattr(wanted, "model_validate_json", None)
    return held if read is None else read(msgspec.json.encode(held))
