"""The parameters of a tool's function: their JSON schema for the model, and its arguments as objects of their types.

Each parameter is read by msgspec or, if its hint brings pydantic, by pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from importlib import import_module
from inspect import Parameter as Signed
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import msgspec

from rxllm.values._faults import faults_of
from rxllm.values._json import json_bytes, json_data
from rxllm.values._pydantic import brings_pydantic, is_field, is_pydantic, type_adapter
from rxllm.values.errors import Path, ValidationError

Default = Callable[[], Any]

_DATETIME = Annotated[datetime, msgspec.Meta(extra_json_schema={"format": "date-time"})]
_GENERICS = (list, dict, set, frozenset, tuple)


class Parameter(msgspec.Struct, frozen=True, eq=False):
    """A parameter that the model gives. `adapter` is pydantic's ``TypeAdapter``, None for a hint that msgspec reads."""

    hint: Any
    default: Default | None = None
    adapter: Any = None

    @classmethod
    def of(cls, hint: Any, default: Any = Signed.empty) -> Parameter:
        """Return the parameter with this hint and default, which may be a ``Field`` of pydantic's."""
        if is_field(default):
            hint, default = Annotated[hint, default], Signed.empty
        fields = (field for field in getattr(hint, "__metadata__", ()) if is_field(field) and not field.is_required())
        make = None if default is Signed.empty else lambda: default
        for field in fields if make is None else ():
            make = partial(field.get_default, call_default_factory=True)
        if not brings_pydantic(hint):
            return cls(_spelled_out(hint, lambda text: msgspec.Meta(description=text)), make)
        hint = _spelled_out(hint, lambda text: import_module("pydantic").Field(description=text))
        return cls(hint, make, type_adapter(hint))

    def read(self, data: Any) -> Any:
        """Return JSON `data` as the type of the hint. Raises msgspec's and pydantic's own errors."""
        if self.adapter is None:
            return msgspec.convert(data, self.hint, dec_hook=_read_path)
        return self.adapter.validate_json(json_bytes(data))


def object_schema(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the JSON schema of an object with these properties. Raises the ``TypeError`` of a hint without one."""
    schemas, shared = _schemas(parameters)
    for name, parameter in parameters.items():
        if parameter.default is not None and (default := _default_data(parameter.default)) is not None:
            schemas[name].setdefault("default", default)
    required = [name for name, parameter in parameters.items() if parameter.default is None]
    schema = {"type": "object", "properties": {name: schemas[name] for name in parameters}, "required": required}
    return {**schema, "$defs": shared} if shared else schema


def convert(parameters: Mapping[str, Parameter], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each parameter. Raises ``ValidationError("invalid_request")``, with every fault."""
    values: dict[str, Any] = {}
    faults: list[tuple[Path, str]] = []
    for name, parameter in parameters.items():
        if name not in arguments and parameter.default is None:
            faults.append(((name,), "is missing, but required"))
            continue
        try:
            default = parameter.default
            values[name] = parameter.read(arguments[name]) if name in arguments else cast(Default, default)()
        except Exception as error:  # a validator of the type may raise anything
            faults += [((name, *path), fault) for path, fault in faults_of(error)]
    if faults:
        raise ValidationError("invalid_request", errors=faults)
    return values


def _schemas(parameters: Mapping[str, Parameter]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the schema of each parameter, and those that they refer to."""
    adapters = {name: parameter.adapter for name, parameter in parameters.items() if parameter.adapter is not None}
    hints = {name: parameter.hint for name, parameter in parameters.items() if parameter.adapter is None}
    plain, shared = msgspec.json.schema_components(
        hints.values(), schema_hook=_path_schema, ref_template="#/$defs/{name}"
    )
    schemas = dict(zip(hints, plain, strict=True))
    if adapters:
        keyed = [(name, "validation", adapter) for name, adapter in adapters.items()]
        # Names of their own: a class may stand in both halves, with a schema that differs.
        prefix = "pydantic_" if shared else ""
        template = f"#/$defs/{prefix}{{model}}"
        found, rest = import_module("pydantic").TypeAdapter.json_schemas(keyed, ref_template=template)
        schemas |= {name: schema for (name, _), schema in found.items()}
        shared |= {prefix + name: schema for name, schema in rest.get("$defs", {}).items()}
    return schemas, shared


def _spelled_out(hint: Any, describe: Callable[[str], Any]) -> Any:
    """Return `hint` with what schemas leave out: the text in ``Annotated[T, "text"]``, the format of a datetime."""
    if hint is datetime:
        return _DATETIME
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        metadata = (describe(item) if isinstance(item, str) else item for item in hint.__metadata__)
        return Annotated[(_spelled_out(args[0], describe), *metadata)]  # pyright: ignore
    parts = tuple(_spelled_out(part, describe) for part in args) if origin is not Literal else args
    if origin in (Union, UnionType):
        return Union[parts]  # noqa: UP007
    return cast(Any, origin)[parts] if origin in _GENERICS and parts else hint


def _default_data(default: Default) -> Any:
    """Return a default as JSON data; None for None, and for what has no JSON and cannot be shown."""
    try:
        return json_data(default())
    except ValidationError:
        return None


def _path_schema(cls: type[Any]) -> dict[str, Any]:
    if issubclass(cls, PurePath):
        return {"type": "string", "format": "path"}
    if is_pydantic(cls):
        raise TypeError(
            f"{cls.__name__} is pydantic's, and stands in a msgspec Struct; use a dataclass or a model there"
        )
    raise TypeError(f"{cls.__name__} is not a type of data; use one, or pass such an object in ToolContext.context")


def _read_path(cls: type[Any], data: Any) -> Any:
    if issubclass(cls, PurePath) and isinstance(data, str):
        return cls(data)
    raise TypeError(f"Expected `str`, got `{type(data).__name__}`")
