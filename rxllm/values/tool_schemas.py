"""Functions that make a JSON schema from a signature, and convert a call's arguments to the hinted types.

msgspec converts the arguments, except those whose type hints need pydantic.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from importlib import import_module
from inspect import Parameter as Signed
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from rxllm.values.errors import Path, ValidationError
from rxllm.values.json_text import (
    brings_pydantic,
    faults_of,
    is_field,
    is_pydantic,
    json_bytes,
    json_data,
    type_adapter,
)
from rxllm.values.whole_numbers import has_whole_float, with_ints

Default = Callable[[], Any]

_DATETIME = Annotated[datetime, msgspec.Meta(extra_json_schema={"format": "date-time"})]
_GENERICS = (list, dict, set, frozenset, tuple)
_BOUNDS = frozenset({"minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems"})


class Parameter(msgspec.Struct, frozen=True, eq=False):
    """A parameter that the model fills in."""

    hint: Any
    default: Default | None = None
    adapter: Any = None
    make_stream: Callable[[Any], Any] | None = None
    """For a ``Stream`` parameter, the function that makes a stream from a complete argument."""

    @classmethod
    def of(cls, hint: Any, default: Any = Signed.empty) -> Parameter:
        """Return the parameter that has this type hint and default. `default` can be a pydantic ``Field``."""
        if is_field(default):
            hint, default = Annotated[hint, default], Signed.empty
        fields = (info for info in getattr(hint, "__metadata__", ()) if is_field(info) and not info.is_required())
        make = None if default is Signed.empty else lambda: default
        for info in fields if make is None else ():
            make = partial(info.get_default, call_default_factory=True)
        if not brings_pydantic(hint):
            return cls(_spell_out(hint, lambda text: msgspec.Meta(description=text)), make)
        hint = _spell_out(hint, lambda text: import_module("pydantic").Field(description=text))
        return cls(hint, make, type_adapter(hint))

    def read(self, data: Any) -> Any:
        """Convert `data` to the type in the hint.

        Raises msgspec's or pydantic's error if `data` does not match.
        """
        try:
            return self._convert(data)
        except Exception:
            if not has_whole_float(data):
                raise
        schema = _object_schema({"data": self})
        return self._convert(with_ints({"data": data}, schema)["data"])

    def _convert(self, data: Any) -> Any:
        if self.adapter is None:
            return msgspec.convert(data, self.hint, dec_hook=_read_path)
        return self.adapter.validate_json(json_bytes(data))


def signature_of(name: str, function: Callable[..., Any]) -> list[tuple[Signed, Any]]:
    """Return the parameters of a tool function, each with its type hint.

    Raises ``TypeError`` if the function has no signature, or if a hint cannot be resolved.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise TypeError(f"the tool {name!r} has no readable signature; wrap it in your own function") from error
    try:
        hints = get_type_hints(_function_in(function), include_extras=True)
    except NameError as error:
        message = f"the tool {name!r} has a hint that cannot be resolved: {error}; define that type at module level"
        raise TypeError(message) from error
    filled_in: Mapping[str, Any] = cast(Any, function).keywords if isinstance(function, partial) else {}
    return [(signed, hints.get(signed.name, Any)) for signed in parameters if signed.name not in filled_in]


def arguments_schema(name: str, signature: Iterable[tuple[Signed, Any]]) -> tuple[dict[str, Parameter], dict[str, Any]]:
    """Return the tool's parameters and the JSON schema of its arguments.

    Raises ``TypeError`` if the type of a parameter has no JSON schema.
    """
    try:
        parameters = {signed.name: Parameter.of(hint, signed.default) for signed, hint in signature}
        return parameters, _object_schema(parameters)
    except Exception as error:  # raised by msgspec or pydantic
        fault = str(error).splitlines()[0]
        raise TypeError(f"the tool {name!r} has a parameter whose type has no JSON schema: {fault}") from error


def argument_streams(
    name: str, function: Callable[..., Any], signature: list[tuple[Signed, Any]]
) -> tuple[dict[str, Parameter], list[tuple[Signed, Any]]]:
    """Return the parameters that are streams, and the signature with ordinary types in their place.

    ``Stream[str]`` becomes ``str``, and ``Stream[T]`` becomes ``list[T]``. Raises ``TypeError`` if a stream is inside
    another type, has a default value, has no item type, or is followed by an ordinary parameter. ``TypeError`` is also
    raised if there is a stream and the function is not async.
    """
    streams: dict[str, Parameter] = {}
    plain: list[tuple[Signed, Any]] = []
    for signed, hint in signature:
        inner, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if not _is_stream(inner):
            if _has_stream(inner):
                remedy = (
                    "write Stream[str] for text or Stream[T] for a list; "
                    "do not make it optional or wrap it in another type"
                )
                raise TypeError(f"the tool {name!r} cannot have the parameter {signed}; {remedy}")
            if streams:
                fault = f"has the ordinary parameter {signed.name!r} after a Stream parameter"
                raise TypeError(f"the tool {name!r} {fault}; put the ordinary parameter before {next(iter(streams))!r}")
            plain.append((signed, hint))
            continue
        if not get_args(inner) or signed.default is not signed.empty:
            remedy = "write Stream[str] for text or Stream[T] for a list, without a default"
            raise TypeError(f"the tool {name!r} cannot have the parameter {signed}; {remedy}")
        if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
            raise TypeError(
                f"the tool {name!r} has a parameter annotated with Stream, "
                "so its function must be declared with async def"
            )
        (item,) = get_args(inner)
        whole: Any = str if item is str else list[item]
        make_stream = (get_origin(inner) or inner)._of_argument
        streams[signed.name] = msgspec.structs.replace(Parameter.of(item), make_stream=make_stream)
        plain.append((signed, Annotated[(whole, *metadata)] if metadata else whole))
    return streams, plain


def refuse_bounds(name: str, streams: Iterable[str], schema: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` if a streamed parameter has bounds, because only a complete argument can be checked."""
    for stream in streams:
        if bounds := sorted(_BOUNDS & schema["properties"][stream].keys()):
            fault = f"has bounds on the Stream {stream!r} ({', '.join(bounds)})"
            raise TypeError(f"the tool {name!r} {fault}; check them in the function")


def _is_stream(hint: Any) -> bool:
    return hasattr(get_origin(hint) or hint, "_of_argument")


def _has_stream(hint: Any) -> bool:
    return _is_stream(hint) or any(map(_has_stream, get_args(hint)))


def convert(parameters: Mapping[str, Parameter], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert all arguments to the types of their parameters.

    Raises ``ValidationError("invalid_request")`` if an argument is invalid or missing.
    """
    values: dict[str, Any] = {}
    faults: list[tuple[Path, str]] = []
    for name, parameter in parameters.items():
        if name not in arguments and parameter.default is None:
            faults.append(((name,), "is missing, but required"))
            continue
        try:
            default = parameter.default
            values[name] = parameter.read(arguments[name]) if name in arguments else cast(Default, default)()
        except Exception as error:  # a validator can raise any error
            faults += [((name, *path), fault) for path, fault in faults_of(error)]
    if faults:
        raise ValidationError("invalid_request", errors=faults)
    return values


def docstring_of(function: Any) -> str:
    """Return the docstring of a function, ``partial`` or callable object."""
    own = inspect.getdoc(function) if hasattr(function, "__name__") else None
    inner = _function_in(function).__doc__
    return own or inspect.cleandoc(inner or "")


def _function_in(function: Any) -> Any:
    while isinstance(function, partial):
        function = cast(Any, function).func
    return function if hasattr(function, "__name__") else type(function).__call__


def _object_schema(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    schemas, shared = _schemas(parameters)
    for name, parameter in parameters.items():
        if parameter.default is not None and (default := _default_data(parameter.default)) is not None:
            schemas[name].setdefault("default", default)
    required = [name for name, parameter in parameters.items() if parameter.default is None]
    schema = {"type": "object", "properties": {name: schemas[name] for name in parameters}, "required": required}
    return {**schema, "$defs": shared} if shared else schema


def _schemas(parameters: Mapping[str, Parameter]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the JSON schema of each parameter, and the definitions that these schemas share."""
    adapters = {name: parameter.adapter for name, parameter in parameters.items() if parameter.adapter is not None}
    hints = {name: parameter.hint for name, parameter in parameters.items() if parameter.adapter is None}
    plain, shared = msgspec.json.schema_components(
        hints.values(), schema_hook=_path_schema, ref_template="#/$defs/{name}"
    )
    schemas = dict(zip(hints, plain, strict=True))
    if adapters:
        keyed = [(name, "validation", adapter) for name, adapter in adapters.items()]
        # msgspec and pydantic may describe the same class differently.
        prefix = "pydantic_" if shared else ""
        template = f"#/$defs/{prefix}{{model}}"
        found, rest = import_module("pydantic").TypeAdapter.json_schemas(keyed, ref_template=template)
        schemas |= {name: schema for (name, _), schema in found.items()}
        shared |= {prefix + name: schema for name, schema in rest.get("$defs", {}).items()}
    return schemas, shared


def _spell_out(hint: Any, describe: Callable[[str], Any]) -> Any:
    """Replace each string in an ``Annotated`` hint with ``describe(string)``, and give datetimes their JSON format."""
    if hint is datetime:
        return _DATETIME
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        metadata = (describe(item) if isinstance(item, str) else item for item in hint.__metadata__)
        return Annotated[(_spell_out(args[0], describe), *metadata)]  # pyright: ignore
    parts = tuple(_spell_out(part, describe) for part in args) if origin is not Literal else args
    if origin in (Union, UnionType):
        return Union[parts]  # noqa: UP007
    return cast(Any, origin)[parts] if origin in _GENERICS and parts else hint


def _default_data(default: Default) -> Any:
    try:
        return json_data(default())
    except ValidationError:
        return None


def _path_schema(cls: type[Any]) -> dict[str, Any]:
    if issubclass(cls, PurePath):
        return {"type": "string", "format": "path"}
    if is_pydantic(cls):
        raise TypeError(
            f"{cls.__name__} is a pydantic type in a msgspec Struct; use a dataclass or a model instead of the Struct"
        )
    raise TypeError(
        f"{cls.__name__} cannot be read from JSON; use plain data, or pass the object in ToolContext.context"
    )


def _read_path(cls: type[Any], data: Any) -> Any:
    if issubclass(cls, PurePath) and isinstance(data, str):
        return cls(data)
    raise TypeError(f"Expected `str`, got `{type(data).__name__}`")
