"""What JSON text is read as. Not an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, cast

import msgspec

from rxllm.operators._checked import refused
from rxllm.values import ValidationError, is_format_class, reader
from rxllm.values._schema import unfenced


def read_as(name: str, wanted: Any) -> Callable[[str], Any]:
    """How JSON text is read as `wanted`: a ``response_format``, any other type that msgspec knows, a function of the
    text, or None for plain JSON. It raises ``ValidationError("invalid_output")``, or what the function raises.

    Raises ``ValidationError("invalid_option")`` naming the option `name` for what is none of these.
    """
    if isinstance(wanted, FunctionType):
        return cast(Callable[[str], Any], wanted)
    if isinstance(wanted, str | Mapping) or is_format_class(wanted):
        found = reader(cast(Any, wanted))
        if found is None:
            raise refused(name, f"{wanted!r} is not a format that JSON is read in")
        return found
    try:
        decoder = msgspec.json.Decoder[Any](Any if wanted is None else wanted)
    except Exception as error:  # msgspec's own, and the NameError of a hint that cannot be read
        raise refused(name, f"{wanted!r} is no type that JSON is read as: {error}") from error

    def read(text: str) -> Any:
        try:
            return decoder.decode(unfenced(text))
        except Exception as error:
            why = str(error)
            raise ValidationError("invalid_output", f"the answer does not fit: {why}", errors=[((), why)]) from error

    return read
