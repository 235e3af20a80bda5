"""API keys: where they are looked for, in this order.

1. the call's ``api_key``; 2. the adapter's; 3. the store, ``rxllm.keys.put("openai", "...")``; 4. the environment.

White space around a key is not part of it, and an empty string is no key. Keys live here, in calls and in requests'
headers, and nowhere else.
"""

from __future__ import annotations

import os

from rxllm.values import EngineError

_store: dict[str, str] = {}

_VARIABLES = {"google": "GOOGLE_API_KEY"}


def put(provider: str, key: str) -> None:
    """Keep `key` for `provider` in this process."""
    _store[provider] = key


def delete(provider: str) -> None:
    """Forget the key of `provider`."""
    _store.pop(provider, None)


def get(provider: str) -> str | None:
    """The key of `provider` from the store or the environment; None if there is none."""
    return _store.get(provider) or os.environ.get(variable_for(provider)) or None


def variable_for(provider: str) -> str:
    """The environment variable of a provider's key.

    >>> variable_for("openai")
    'OPENAI_API_KEY'
    """
    return _VARIABLES.get(provider, f"{provider.upper().replace('-', '_')}_API_KEY")


def find(provider: str, call_key: str | None, adapter_key: str | None, variable: str | None = None) -> str | None:
    """The first key along the chain; None if there is none."""
    variable = variable or variable_for(provider)
    candidates = (call_key, adapter_key, _store.get(provider), os.environ.get(variable))
    return next((key for given in candidates if given and (key := given.strip())), None)


def missing(provider: str, variable: str | None = None) -> EngineError:
    """The error that names every place that was looked in."""
    variable = variable or variable_for(provider)
    places = (
        "the call's api_key=",
        "the adapter's api_key=",
        f"the key store (rxllm.keys.put({provider!r}, ...))",
        f"the environment variable {variable}",
    )
    message = f"no API key for {provider}: looked in {', '.join(places)}"
    return EngineError("missing_key", message, provider=provider, metadata={"checked_sources": list(places)})
