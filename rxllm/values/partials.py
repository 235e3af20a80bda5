"""`Partial`, a value that has only partly arrived."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from rxllm.values.advice import no_attribute
from rxllm.values.argument_checks import did_you_mean, shown
from rxllm.values.drawing import drawn
from rxllm.values.json_text import UNREADABLE, cached_by_type, read_json, unescaped
from rxllm.values.schemas import decoder

T = TypeVar("T", covariant=True)


PartialState = Literal["missing", "growing", "done"]

_CONTAINERS = ("{", "[")
_CLOSING = {"{": "}", "[": "]", '"': '"'}
_NOT_READ: Any = msgspec.UNSET  # UNSET is still the same object after it is copied or unpickled


class Partial(Generic[T]):
    """The part of a `T` that has arrived so far.

    ``operators.partials(T)`` emits these immutable values.

    * ``partial["name"]`` is the partial value of a field or key.
    * ``partial[0]`` is an array element, and ``partial[-1]`` is the newest one. Lookups can be chained.
    * A value is missing until its first character arrives. A missing value is falsy.
    * Iteration yields an array's elements. ``keys()`` returns an object's names. ``len(...)`` is the number of
      elements or names.
    * Numbers, true, false and null are missing until they are complete. So are Literals, Enums and dates.
    * If `T` is a union of classes, the partial value has the fields of all the classes.
    """

    __slots__ = ("_at", "_node", "_shape", "_state", "_text", "_value")

    def __init__(
        self, text: Pieces, node: Node | None, shape: Shape, at: int, state: PartialState, value: Any = _NOT_READ
    ) -> None:
        self._text = text
        self._node = node
        self._shape = shape
        self._at = at  # the position at which the visible text ends
        self._state: PartialState = state
        self._value = value

    @property
    def state(self) -> PartialState:
        """The state of the value: ``"missing"``, ``"growing"`` or ``"done"``.

        The whole answer is done only after it has been validated.
        """
        return self._state

    @property
    def value(self) -> T | None:
        """The value if it is complete, otherwise None.

        The value of a field has the annotated type. If the field's text does not match that type, the value is plain
        JSON data, and the stream fails later.
        """
        if self._value is not _NOT_READ:
            return self._value
        return self._shape.read(self._raw()) if self._state == "done" else None

    @property
    def text(self) -> str:
        """The text that has arrived so far, or "" if the value is not a string."""
        if self._node is None or self._node.kind != '"' or not self:
            return ""
        return unescaped(self._text.slice(self._node.start + 1, min(self._node.end - 1, self._at)))

    @property
    def so_far(self) -> Any:
        """The part of the value that has arrived, as JSON data with the keys that the model wrote."""
        node, shape = self._node, self._shape
        if node is None or not self:
            return None
        start, end, closing = node.start, node.start, ""
        while node.shows(shape, self._at):  # only the newest child can be incomplete
            end = min(node.end, self._at)
            if node.end <= self._at:
                break
            closing = _CLOSING[node.kind] + closing
            count = node.begun(self._at)
            if node.kind != '"':
                end = node.children[count - 2].end if count > 1 else node.start + 1
            if not count:
                break
            node, shape = node.children[count - 1], shape.child(node.key(shape, count - 1))
        return plain(f"{self._text.slice(start, end)}{closing}")

    def keys(self) -> tuple[str, ...]:
        """Return the names of the object's fields that are present, in order."""
        node = self._node
        if node is None:
            return ()
        return tuple(dict.fromkeys(self._shape.name(key) for key in node.keys[: self._count()]))

    def __getitem__(self, key: str | int, /) -> Partial[Any]:
        if isinstance(key, int) and key < 0:
            key = max(key + len(self), -1)
        node = self._node.find(key, self._at) if self._node is not None else None
        if node is None and isinstance(key, str) and (names := self._shape.names) and key not in names:
            remedy = did_you_mean(key, names) or f"; the fields are {', '.join(names)}"
            raise KeyError(f"{getattr(self._shape.hint, '__name__', self._shape.hint)} has no field {key!r}{remedy}")
        shape = self._shape.child(key)
        return Partial(self._text, node, shape, self._at, _state(node, shape, self._at))

    def __contains__(self, key: str | int, /) -> bool:
        return bool(self[key])

    def __iter__(self) -> Iterator[Partial[Any]]:
        is_array = self._node is not None and self._node.kind == "["
        return (self[index] for index in range(len(self) if is_array else 0))

    def __len__(self) -> int:
        return len(self.keys()) if self._node is not None and self._node.keys else self._count()

    def __bool__(self) -> bool:
        return self._state != "missing"

    def __eq__(self, other: object) -> bool:
        """Whether both partial values have the same type, state and JSON text."""
        if not isinstance(other, Partial):
            return NotImplemented
        same = (self._state, self._shape.hint) == (other._state, other._shape.hint)
        return same and self._raw() == other._raw()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Partial({self._state}, {shown(self.so_far)})"

    _repr_html_ = drawn

    if not TYPE_CHECKING:  # type checkers must reject unknown names

        def __getattr__(self, name: str) -> Any:
            if name in self.__slots__:  # a copy is being made
                raise AttributeError(name)
            raise no_attribute("Partial", name, (), f"partial[{name!r}]" if name in self._shape.names else "")

    def _count(self) -> int:
        node = self._node
        if node is None or not (count := node.begun(self._at)):
            return 0
        shape = self._shape.child(node.key(self._shape, count - 1))
        return count if node.children[count - 1].shows(shape, self._at) else count - 1

    def _raw(self) -> str:
        return self._text.slice(self._node.start, min(self._node.end, self._at)) if self._node is not None else ""


def _state(node: Node | None, shape: Shape, at: int) -> PartialState:
    if node is None or not node.shows(shape, at):
        return "missing"
    return "done" if node.end <= at else "growing"


class Pieces:
    """Text that grows piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._starts: list[int] = []
        self._length = 0

    def append(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            self._starts.append(self._length)
            self._length += len(piece)

    def slice(self, start: int, end: int) -> str:
        first = max(bisect_right(self._starts, start) - 1, 0)
        pieces = self._pieces[first : bisect_left(self._starts, end)]
        offset = self._starts[first] if pieces else 0
        return "".join(pieces)[start - offset : end - offset]

    def __str__(self) -> str:
        return "".join(self._pieces)


class Node:
    """The position of a JSON value in the text.

    Nodes only grow. A `Partial` ignores everything after the position at which its visible text ends.
    """

    __slots__ = ("_positions", "children", "end", "keys", "kind", "start")

    def __init__(self, kind: str, start: int) -> None:
        self.kind = kind  # the opening bracket or quote, or "" for other values
        self.start = start
        self.end = sys.maxsize
        # All strings and numbers share the same empty containers, to save memory.
        self.children: list[Node] = [] if kind in _CONTAINERS else _NO_CHILDREN
        self.keys: list[str] = [] if kind == "{" else _NO_KEYS
        self._positions: dict[str, list[int]] = {} if kind == "{" else _NO_POSITIONS  # name -> indexes of its children

    def add(self, child: Node, key: str | int, name: str | int) -> None:
        """Add a child. `name` is the name of the field whose JSON key is `key`."""
        if isinstance(key, str) and isinstance(name, str):
            self._positions.setdefault(name, []).append(len(self.children))
            self.keys.append(key)
        self.children.append(child)

    def key(self, shape: Shape, index: int) -> str | int:
        """Return the field name of the child at `index`. In an array, return `index` itself."""
        return shape.name(self.keys[index]) if self.keys else index

    def begun(self, at: int) -> int:
        """Return the number of children that begin before the text position `at`."""
        count = len(self.children)  # another thread may be adding children
        if not count or self.children[count - 1].start < at:
            return count
        return bisect_left(self.children, at, hi=count, key=lambda child: child.start)

    def find(self, key: str | int, at: int) -> Node | None:
        """Return the child at `key` that begins before the text position `at`, or None if there is no such child."""
        count = self.begun(at)
        if isinstance(key, str):
            positions = self._positions.get(key, ())
            newest = bisect_left(positions, count) - 1
            return self.children[positions[newest]] if newest >= 0 else None
        return self.children[key] if self.kind == "[" and 0 <= key < count else None

    def shows(self, shape: Shape, at: int) -> bool:
        """Whether the node is visible in a `Partial` whose text ends at `at`."""
        return self.end <= at or self.kind in _CONTAINERS or (self.kind == '"' and shape.grows)


_NO_CHILDREN: list[Node] = []
_NO_KEYS: list[str] = []
_NO_POSITIONS: dict[str, list[int]] = {}


_QUALIFIERS = ("Required", "NotRequired", "ReadOnly")


class Shape:
    """The possible types of a value in the JSON text.

    If `grows` is True, a string can be read before it is complete.
    """

    def __init__(self, hint: Any) -> None:
        self.hint = hint
        self._names: dict[str, str] = {}
        self._known: dict[str | int, list[Any]] = {}  # type hints, by field name or index
        self._others: dict[type, list[Any]] = {str: [], int: []}
        self._children: dict[str | int | type, Shape] = {}
        self._decode: Any = None
        options = list(_options(hint))
        self.grows = any(map(_grows, options))
        for option in options:
            with suppress(Exception):  # the parser will report the error
                self._add(option)

    def __reduce__(self) -> tuple[Any, ...]:
        return shape_of, (self.hint,)  # decoders cannot be pickled

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, or () if an object may have any key."""
        return () if self._others[str] else tuple(dict.fromkeys(self._names.values()))

    def name(self, key: str) -> str:
        """Return the name of the field whose JSON key is `key`, or `key` itself if there is no such field."""
        return self._names.get(key, key)

    def child(self, key: str | int) -> Shape:
        """Return the shape of the value at `key`, which is a field name or an index."""
        other = str if isinstance(key, str) else int
        place = key if key in self._known else other
        shape = self._children.get(place)
        if shape is None:
            hints = self._known.get(key) or self._others[other] or [Any]
            shape = self._children[place] = shape_of(hints[0] if len(hints) == 1 else Union[tuple(hints)])  # noqa: UP007
        return shape

    def read(self, raw: str) -> Any:
        """Read the JSON text `raw` as the hinted type, or as plain data if the text does not match."""
        try:
            self._decode = self._decode or decoder(self.hint)
            return self._decode(raw)
        except Exception:  # the type has no decoder, or the text does not match it
            return plain(raw)

    def _add(self, option: Any) -> None:
        cls, args = get_origin(option) or option, get_args(option)
        if not isinstance(cls, type):
            return
        if fields := _fields(cls, args):
            for key, (name, hint) in fields.items():
                self._names[key] = name
                hints = self._known.setdefault(name, [])
                hints += [] if hint in hints else [hint]
            if getattr(cls, "model_config", {}).get("extra") == "allow":
                self._others[str].append(Any)
        elif hasattr(cls, "_fields"):  # written as an array
            for index, hint in enumerate(_hints(cls, args).values()):
                self._known.setdefault(index, []).append(hint)
        elif issubclass(cls, Mapping):
            self._others[str].append(args[1] if len(args) > 1 else Any)
        elif cls is tuple and ... not in args:
            for index, hint in enumerate(args):
                self._known.setdefault(index, []).append(hint)
        elif args:
            self._others[int].append(args[0])


@cached_by_type
def shape_of(hint: Any) -> Shape:
    return Shape(hint)


def plain(raw: str) -> Any:
    """Return the data in the JSON text `raw`, or None if `raw` is not JSON."""
    try:
        return read_json(raw)
    except UNREADABLE:
        return None


def _options(hint: Any) -> Iterator[Any]:
    """Yield the members of `hint` if `hint` is a union, and `hint` itself otherwise."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        for option in get_args(hint):
            yield from _options(option)
    elif origin is Annotated:
        yield from _options(get_args(hint)[0])
    elif (target := getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)) is not None:
        yield from _options(target)  # a NewType or a type alias
    elif getattr(hint, "__pydantic_root_model__", False):
        yield from _options(hint.__pydantic_fields__["root"].annotation)
    else:
        yield hint


def _grows(option: Any) -> bool:
    if option in (Any, object) or isinstance(option, TypeVar):
        return True
    return isinstance(option, type) and issubclass(option, str) and not issubclass(option, Enum)


def _fields(cls: Any, args: tuple[Any, ...]) -> dict[str, tuple[str, Any]]:
    """Return the name and type of each field of `cls`, keyed by JSON key."""
    if models := cast("dict[str, Any] | None", getattr(cls, "__pydantic_fields__", None)):
        return {key: (name, _annotation(field)) for name, field in models.items() for key in _keys(name, field)}
    if issubclass(cls, msgspec.Struct):
        if cls.__struct_config__.array_like:
            return {}
        names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        hints = _hints(cls, args)
        return {key: (name, hints[name]) for key, name in names}
    if hasattr(cls, "__required_keys__") or hasattr(cls, "__dataclass_fields__"):
        return {name: (name, _strip_qualifiers(hint)) for name, hint in _hints(cls, args).items()}
    return {}


def _annotation(field: Any) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation  # pyright: ignore


def _keys(name: str, field: Any) -> Iterator[str]:
    """Yield the JSON keys that pydantic may accept for a model's field."""
    alias = field.validation_alias
    choices = [alias] if isinstance(alias, str) else getattr(alias, "choices", [])
    yield from (choice for choice in choices if isinstance(choice, str))
    yield name  # accepted with `populate_by_name`


def _hints(cls: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    arguments = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    return {name: _substitute(hint, arguments) for name, hint in hints.items()} if arguments else hints


def _substitute(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    if hint in arguments:
        return arguments[hint]
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(arguments.get(parameter, parameter) for parameter in parameters)] if parameters else hint


def _strip_qualifiers(hint: Any) -> Any:
    is_qualified = getattr(get_origin(hint), "_name", "") in _QUALIFIERS
    return _strip_qualifiers(get_args(hint)[0]) if is_qualified else hint
