"""A model catalogue that you fill in yourself.

If genai-prices is installed, it supplies the prices that are missing from the catalogue.

::

    rxllm.models.put(ModelInfo("openai:small", tools=True, vision=False, input_price=0.15, output_price=0.6))

================================  =====================================================================================
in the model's entry              effect on a call to the model
================================  =====================================================================================
a capability is False             A call that needs the capability is rejected before it is sent, with
                                  ``ValidationError("unsupported_capability")``. Each of the error's `errors` is
                                  ``(("tools",), "tools_disabled")``,
                                  ``(("response_format",), "json_native_disabled")``,
                                  ``(("vision",), "vision_disabled")``, ``(("images",), "images_disabled")`` or
                                  ``(("response_format",), "excludes_tools")``.
a setting is not accepted         Likewise, with ``(("temperature",), "sampling_disabled")`` (or ``top_p``, ``top_k``),
                                  ``(("tool_choice",), "tool_choice_disabled")`` or
                                  ``(("reasoning_effort",), "reasoning_effort_disabled")``.
`tools_with_schema` is False      ``chat`` makes two passes, as with ``structured_finalize``, unless the call sets that
                                  option itself.
prices are set                    The costs that the provider does not report are added to the usage.
================================  =====================================================================================

rxllm checks nothing if a model has no entry, and it does not check fields that are not set. For the settings that well
known models accept, rxllm has a table of its own (``rxllm.values.model_table``), which refuses nothing: if the provider
rejects a request, its error's message suggests what to change, and ``ops.fallback`` leaves out settings that the other
model does not accept. The fields `sampling`, `forced_tool_choice` and `reasoning_efforts` of an entry override the
table. The name of an entry begins
with the adapter's provider, in upper or lower case. If the adapter has no provider, the name begins with the name of
the adapter's class or function. For an adapter that always uses the same model, the name is just the provider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rxllm.values import EngineError, ModelInfo, Request, Usage, ValidationError
from rxllm.values.argument_checks import check, check_instance, invalid_option, must_be
from rxllm.values.model_table import Takes, takes
from rxllm.values.usage import CAPABILITIES, by_iteration

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation

__all__ = ["clear", "delete", "entries", "find", "get", "priced", "put", "select"]


def __dir__() -> list[str]:
    return __all__


_ALIASES = {"azure-responses": "azure", "gemini": "google", "openai-responses": "openai"}

_entries: dict[str, ModelInfo] = {}


def put(*entries: ModelInfo) -> None:
    """Add `entries` to this process's catalogue.

    An entry replaces any earlier entry that has the same name. Raises ``ValidationError("invalid_option")`` if an entry
    is not a `ModelInfo`.
    """
    wrong = [
        ((str(i),), must_be("a ModelInfo", entry))
        for i, entry in enumerate(entries)
        if not isinstance(entry, ModelInfo)  # pyright: ignore[reportUnnecessaryIsInstance]
    ]
    if wrong:
        raise ValidationError("invalid_option", errors=wrong)
    _entries.update((_key(entry.name), entry) for entry in entries)


def get(name: str) -> ModelInfo | None:
    """Return the entry for ``"provider:model"``, or None if there is none."""
    return _entries.get(_key(name))


def find(provider: str, model: str | None) -> ModelInfo | None:
    """Return the entry for a provider's `model`, or None if there is none."""
    return get(f"{provider}:{model}" if model else provider) if _entries else None


def entries() -> list[ModelInfo]:
    """Return all entries, in the order they were added."""
    return list(_entries.values())


def delete(name: str) -> None:
    """Remove the entry for ``"provider:model"``."""
    _entries.pop(_key(name), None)


def clear() -> None:
    """Remove all entries."""
    _entries.clear()


def refused_settings(provider: str, request: Request) -> dict[str, str]:
    """Return a remedy for each setting of `request` that its model does not accept.

    An entry overrides rxllm's own table. If neither contains the model, the result is empty.
    """
    known, entry = takes(request.model), find(provider, request.model)
    return {} if known is None and entry is None else (known or Takes()).overridden(entry).refused(request)


def priced(name: str, usage: Usage, *, response_model: str | None = None) -> Usage:
    """Return `usage` with its missing costs filled in.

    >>> priced("anthropic:claude-3-haiku-20240307", Usage(1_000_000, 100_000)).total_cost
    0.375
    >>> priced("acme:unknown", Usage(1_000_000, 100_000)).total_cost is None
    True

    The prices are taken from the entry for ``"provider:model"``. If there is no such entry, or if it has no prices,
    genai-prices is searched for `response_model` and then for the model in `name`. `response_model` is what the
    provider's response calls the model.

    Raises ``EngineError("missing_dependency")`` if genai-prices is needed but not installed. Raises
    ``ValidationError("invalid_option")`` if `name` is not ``"provider:model"`` or `usage` is not a `Usage`.
    """
    check("name", name, isinstance(name, str) and all(name.partition(":")), "'provider:model'")  # pyright: ignore
    check_instance("usage", usage, Usage, "an rxllm.Usage")
    provider = name.partition(":")[0]

    def price(other: str | None, part: Usage) -> Usage:
        own = f"{provider}:{other}" if other else name
        entry = get(own)
        if entry is not None and entry.has_prices:
            return entry.priced(part)
        return with_price(part, own, other or response_model, price_context(usage, {}))

    return by_iteration(usage, price)


def price_of(entry: ModelInfo) -> Callable[[Usage], Usage]:
    """Return a function that adds the costs from `entry` to a `Usage`.

    If another model ran an iteration, the iteration is charged at the prices of that model.
    """

    def price(other: str | None, part: Usage) -> Usage:
        try:
            return entry.priced(part) if other is None else priced(f"{entry.provider}:{other}", part)
        except EngineError:  # genai-prices is not installed
            return part

    return lambda usage: by_iteration(usage, price)


def select(*, require: Iterable[str] = (), prefer: Iterable[str] = ()) -> ModelInfo:
    """Return the first entry that has every capability in `require`.

    >>> put(ModelInfo("a:one", tools=True), ModelInfo("b:two", tools=True, vision=True))
    >>> select(require=["tools"], prefer=["b", "a"]).name
    'b:two'
    >>> clear()

    The providers in `prefer` are tried first, in that order, and then all other entries in the order in which they were
    added. A model has a capability if the field with that name is True in its `ModelInfo`.

    Raises ``EngineError("missing_model")`` if no entry qualifies. Raises ``ValidationError("invalid_option")`` if a
    capability is unknown.
    """
    wanted, providers = tuple(require), [_canonical(name) for name in prefer]
    unknown = [name for name in wanted if name not in CAPABILITIES]
    if unknown:
        raise invalid_option("require", f"{unknown[0]!r} is not a capability; choose from {', '.join(CAPABILITIES)}")
    able = [entry for entry in _entries.values() if all(getattr(entry, name) is True for name in wanted)]
    if not able:
        fault = (
            "the catalogue has no suitable model "
            f"(models: {len(_entries)}; required: {', '.join(wanted) or 'any model'})"
        )
        raise EngineError("missing_model", f"{fault}; add one with models.put")
    places = {name: place for place, name in enumerate(providers)}
    return min(able, key=lambda entry: places.get(_canonical(entry.provider), len(places)))


def _key(name: str) -> str:
    provider, colon, model = name.partition(":")
    return f"{_canonical(provider)}{colon}{model}"


def _canonical(provider: str) -> str:
    name = provider.lower()
    return _ALIASES.get(name, name)


# Prices from genai-prices, and the counts that it prices separately


_PROVIDERS = {**_ALIASES, "moonshot": "moonshotai", "vertex": ""}
"""Maps the name of a provider to the name that genai-prices uses for it, if the two names differ.

If a provider is mapped to an empty string, its models are looked up without a provider.
"""

_EXTRA = {
    "cache_write_1h_tokens": ("cache_creation.ephemeral_1h_input_tokens",),
    "input_audio_tokens": (
        "prompt_tokens_details.audio_tokens",
        "promptTokensDetails.AUDIO",
        "toolUsePromptTokensDetails.AUDIO",
    ),
    "cache_audio_read_tokens": ("cacheTokensDetails.AUDIO",),
    "output_audio_tokens": (
        "completion_tokens_details.audio_tokens",
        "candidatesTokensDetails.AUDIO",
        "responseTokensDetails.AUDIO",
    ),
    "input_image_tokens": (
        "promptTokensDetails.IMAGE",
        "promptTokensDetails.DOCUMENT",
        "toolUsePromptTokensDetails.IMAGE",
        "toolUsePromptTokensDetails.DOCUMENT",
    ),
    "output_image_tokens": ("candidatesTokensDetails.IMAGE",),
    "input_video_tokens": ("promptTokensDetails.VIDEO", "toolUsePromptTokensDetails.VIDEO"),
    "web_searches": ("num_search_queries",),
}
"""Maps each count in genai-prices to the counters in ``Usage.extra`` that add up to it."""

_CONTEXT = ("service_tier", "speed")
"""The details of an answer that affect its price."""


def with_price(usage: Usage, name: str, response_model: str | None, context: Mapping[str, str]) -> Usage:
    """Return `usage` with its missing costs filled in.

    `name` has the form ``"provider:model"``. The price of `response_model` is used if it is known. Otherwise, the price
    of the model in `name` is used.
    """
    provider, _, model = name.partition(":")
    provider = _PROVIDERS.get(provider, provider) or None

    def price(other: str | None, part: Usage) -> Usage:
        return _fill_costs(part, provider, [other] if other else [response_model, model], context)

    return by_iteration(usage, price)


def _fill_costs(usage: Usage, provider: str | None, models: Iterable[str | None], context: Mapping[str, str]) -> Usage:
    """Return `usage` with its missing costs filled in, using the first of `models` that has prices."""
    for model in filter(None, models):
        price = _price(usage, provider, model, context)
        if price is not None:
            input_cost = float(price.input_price) if usage.input_cost is None else usage.input_cost
            output_cost = float(price.output_price) if usage.output_cost is None else usage.output_cost
            # The total can also include prices for searches and requests.
            total = input_cost + output_cost + float(price.total_price - price.input_price - price.output_price)
            total = total if usage.total_cost is None else usage.total_cost
            return replace(usage, input_cost=input_cost, output_cost=output_cost, total_cost=total)
    return usage


def _price(usage: Usage, provider: str | None, model: str, context: Mapping[str, str]) -> PriceCalculation | None:
    calc_price, Counts = price_list()  # noqa: N806 a class
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    for counts in (all_counts(usage), token_counts(usage)):
        try:
            return calc_price(Counts(**counts), model, provider_id=provider, price_context=context)
        except LookupError:  # the model is unknown
            return None
        except ValueError:  # the counts contradict each other
            continue
    return None


def price_list() -> tuple[Callable[..., PriceCalculation], type]:
    """Return ``calc_price`` and ``Usage`` from genai-prices.

    Raises ``EngineError("missing_dependency")`` if genai-prices is not installed.
    """
    try:
        from genai_prices import Usage as Counts
        from genai_prices import calc_price
    except ImportError as error:
        message = "prices require the genai-prices package; run pip install 'rxllm[cost]'"
        raise EngineError("missing_dependency", message) from error
    return calc_price, Counts


def token_counts(usage: Usage) -> dict[str, int | None]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_input_tokens,
    }


def all_counts(usage: Usage) -> dict[str, int | None]:
    """Return all counts in `usage` that may have a price, including searches and audio tokens.

    >>> all_counts(Usage(10, 5, tool_usage={"web_search_requests": 2}))["web_searches"]
    2
    """
    counts = token_counts(usage)
    for name, keys in _EXTRA.items():
        counts[name] = sum(_number(usage.extra.get(key)) for key in keys) or None
    return counts | ({"web_searches": searches} if (searches := _searches(usage.tool_usage)) else {})


def price_context(usage: Usage, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the answer's service tier and speed."""
    known = {name: metadata.get(name) or usage.extra.get(name) for name in _CONTEXT}
    return {name: text for name, text in known.items() if isinstance(text, str)}


def _searches(tool_usage: Mapping[str, Any]) -> int:
    match tool_usage:  # Anthropic and OpenAI use different names
        case {"web_search_requests": count} | {"web_search": {"num_requests": count}}:
            return _number(count)
        case _:
            return 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
