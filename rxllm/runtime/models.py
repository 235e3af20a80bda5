"""The catalogue of models: what each can do and what it costs, as far as you have said so. It begins empty.

::

    rxllm.models.put(ModelInfo("openai:small", tools=True, vision=False, input_price=0.15, output_price=0.6))

========================  =============================================================================================
for a model with entry    a call
========================  =============================================================================================
that cannot do            is refused before it is asked: ``ValidationError("unsupported_capability")``, whose `errors`
what is asked             are ``(("tools",), "tools_disabled")``, ``(("response_format",), "json_native_disabled")``,
                          ``(("vision",), "vision_disabled")``, ``(("images",), "images_disabled")``,
                          ``(("response_format",), "excludes_tools")``
whose tools and schema    of ``chat`` is made in two passes, as with ``structured_finalize``, unless that is said
exclude one another
with prices               has its costs filled in where the provider stated none
========================  =============================================================================================

A model without an entry, and whatever an entry leaves out, is left to the provider. The provider is the adapter's,
or the name of its class or function, in any case; one that always asks the same model has an entry of that name alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from rxllm.values import EngineError, ModelInfo, ValidationError
from rxllm.values._model import CAPABILITIES
from rxllm.values.arguments import invalid_option

_ALIASES = {"gemini": "google", "openai-responses": "openai"}

_entries: dict[str, ModelInfo] = {}


def put(*entries: ModelInfo) -> None:
    """Keep these in this process; one of a name that is there takes its place.

    Raises ``ValidationError("invalid_option")`` for what is no `ModelInfo`.
    """
    wrong = [((str(i),), f"must be a ModelInfo, not {each!r}") for i, each in enumerate(entries) if not _is_entry(each)]
    if wrong:
        raise ValidationError("invalid_option", errors=wrong)
    _entries.update((_key(each.name), each) for each in entries)


def get(name: str) -> ModelInfo | None:
    """The entry of ``"provider:model"``; None if there is none."""
    return _entries.get(_key(name))


def find(provider: str, model: str | None) -> ModelInfo | None:
    """The entry of a provider's `model`; None if there is none."""
    return get(f"{provider}:{model}" if model else provider) if _entries else None


def entries() -> list[ModelInfo]:
    """All entries, in the order in which they came."""
    return list(_entries.values())


def delete(name: str) -> None:
    """Forget the entry of ``"provider:model"``."""
    _entries.pop(_key(name), None)


def clear() -> None:
    """Forget every entry."""
    _entries.clear()


def select(*, require: Iterable[str] = (), prefer: Iterable[str] = ()) -> ModelInfo:
    """The first entry that has every capability of `require`, by the order of providers in `prefer`, then as they came.

    >>> put(ModelInfo("a:one", tools=True), ModelInfo("b:two", tools=True, vision=True))
    >>> select(require=["tools"], prefer=["b", "a"]).name
    'b:two'
    >>> clear()

    Capabilities are the fields of `ModelInfo` that are True or False, and only True counts. Raises
    ``EngineError("missing_model")`` where there is none, ``ValidationError("invalid_option")`` for an unknown one.
    """
    wanted, providers = tuple(require), [_canonical(name) for name in prefer]
    unknown = [name for name in wanted if name not in CAPABILITIES]
    if unknown:
        what = f"{unknown[0]!r} is no capability; they are {', '.join(CAPABILITIES)}"
        raise invalid_option("require", what)
    able = [each for each in _entries.values() if all(getattr(each, name) is True for name in wanted)]
    if not able:
        message = (
            f"none of the catalogue's {len(_entries)} models has {', '.join(wanted) or 'an entry'}; see models.put"
        )
        raise EngineError("missing_model", message)
    places = {name: place for place, name in enumerate(providers)}
    return min(able, key=lambda each: places.get(_canonical(each.provider), len(places)))


def _key(name: str) -> str:
    provider, colon, model = name.partition(":")
    return f"{_canonical(provider)}{colon}{model}"


def _canonical(provider: str) -> str:
    name = provider.lower()
    return _ALIASES.get(name, name)


def _is_entry(given: object) -> bool:
    return isinstance(given, ModelInfo)
