"""API keys and their sources.

The sources are tried in this order, and the first key that is not empty is used:

================  ====================================================================
source            how to set the key
================  ====================================================================
``"call"``        ``generate(..., api_key="...")``
``"adapter"``     ``OpenAIChat(api_key="...")``
``"store"``       ``rxllm.keys.put("openai", "...")``
``"environment"`` set the environment variable ``OPENAI_API_KEY``
``"dotenv"``      set that variable in a dotenv file and call ``rxllm.keys.load_dotenv()``
================  ====================================================================

For tokens that expire, the first three sources also accept a function that returns the key. The function is called for
each attempt. A synchronous function runs in a thread, and an asynchronous one is awaited.

Whitespace around a key is removed. Keys are kept only in this module, in adapters, in calls and in request headers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from typing import Any, Literal

from rxllm import plugins
from rxllm.http.secrets import redacted, secrets_in
from rxllm.runtime.threads import in_thread
from rxllm.values import ApiKey, EngineError, LLMError
from rxllm.values.argument_checks import did_you_mean, invalid_option

__all__ = [
    "Source",
    "clear",
    "delete",
    "find",
    "from_environment",
    "get",
    "left_behind",
    "load_dotenv",
    "missing",
    "put",
    "redacted",
    "resolved",
    "secrets_in",
    "source",
    "variable_for",
]


def __dir__() -> list[str]:
    return __all__


Source = Literal["call", "adapter", "store", "environment", "dotenv"]

_VARIABLES = {
    "azure": ("AZURE_OPENAI_AD_TOKEN", "AZURE_OPENAI_API_KEY"),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    "vertex": ("GOOGLE_API_KEY",),
}
"""Maps providers to environment variables with unusual names. The first variable that is set is used."""

_PROVIDERS = {
    *("alibaba", "anthropic", "azure", "azure-responses", "cerebras", "deepseek", "fireworks", "gemini", "google"),
    *("groq", "huggingface", "llamacpp", "lmstudio", "local", "minimax", "mistral", "moonshot", "nvidia", "ollama"),
    *("openai", "openai-responses", "openrouter", "perplexity", "together", "vertex", "vllm", "xai", "zai"),
}
"""The built-in providers. `put` warns about a name that resembles one of them."""


class _Dotenv:
    """The dotenv file that was loaded last, and its variables."""

    def __init__(self) -> None:
        self.path: str | None = None
        self.variables: dict[str, str] = {}

    def described(self, variable: str) -> str:
        if self.path is None:
            return "a dotenv file (none is loaded; call rxllm.keys.load_dotenv())"
        if not Path(self.path).is_file():
            return f"the dotenv file {self.path}, which does not exist"
        return f"{variable} in the dotenv file {self.path}"


_store: dict[str, ApiKey] = {}
_dotenv = _Dotenv()


def put(provider: str, key: ApiKey) -> None:
    """Store the key for `provider` until the process ends.

    `key` is the key itself or a function that returns it. `provider` can be any name, but you get a warning if the name
    looks like a misspelled provider. Raises ``ValidationError("invalid_option")`` if `key` is neither a string nor a
    function.
    """
    if not isinstance(key, str) and not callable(key):  # pyright: ignore[reportUnnecessaryComparison]
        raise invalid_option("key", "must be a string, or a function that returns one")
    providers = {*_PROVIDERS, *plugins.names("rxllm.adapters")}
    if provider not in providers and (near := did_you_mean(provider, providers)):
        message = f"rxllm.keys.put({provider!r}, ...): there is no provider {provider!r}{near}; the key is kept anyway"
        warnings.warn(message, UserWarning, stacklevel=2)
    _store[provider] = key


def delete(provider: str) -> None:
    """Remove the stored key for `provider`."""
    _store.pop(provider, None)


def clear() -> None:
    """Remove all stored keys, and forget the dotenv file."""
    _store.clear()
    _dotenv.path = None
    _dotenv.variables = {}


def load_dotenv(path: str | Path | None = None) -> bool:
    """Read a dotenv file, and use it as a source of keys. Return whether the file exists.

    The file is `path` or, by default, the nearest ``.env`` file in the working directory or one of its parents. The
    environment of the process does not change. Raises ``EngineError("missing_dependency")`` if ``rxllm[dotenv]`` is not
    installed.
    """
    try:
        dotenv = import_module("dotenv")
    except ImportError as error:
        message = "reading a dotenv file needs python-dotenv; run pip install 'rxllm[dotenv]'"
        raise EngineError("missing_dependency", message) from error
    file = str(path) if path is not None else dotenv.find_dotenv(usecwd=True)
    _dotenv.path = os.path.abspath(file or ".env")
    # A "$" in a key must not be expanded.
    variables: dict[str, str | None] = (
        dotenv.dotenv_values(_dotenv.path, interpolate=False) if os.path.exists(_dotenv.path) else {}
    )
    _dotenv.variables = {name: text for name, text in variables.items() if text}
    return os.path.isfile(_dotenv.path)


def get(provider: str) -> ApiKey | None:
    """Return the key for `provider`, or None if there is none.

    The store, the environment and the dotenv file are searched, in that order. If a function was stored, it is returned
    without being called.
    """
    return find(provider, None, None)


def source(provider: str) -> Source | None:
    """Return the source of the key that `get` returns for `provider`, or None if there is no key."""
    return next((place for place, _ in _candidates(provider, None, None, None)), None)


def variable_for(provider: str) -> str:
    """Return the name of the environment variable for a provider's key.

    >>> variable_for("openai")
    'OPENAI_API_KEY'
    """
    return _variables(provider, None)[0]


def _variables(provider: str, variable: str | None) -> tuple[str, ...]:
    usual = f"{provider.upper().replace('-', '_')}_API_KEY"
    return (variable,) if variable else _VARIABLES.get(provider, (usual,))


def from_environment(variable: str) -> str | None:
    """Return the value of a variable in the environment or the dotenv file, or None if it is empty or not set."""
    values = (os.environ.get(variable), _dotenv.variables.get(variable))
    return next((text for value in values if value and (text := value.strip())), None)


def find(
    provider: str, call_key: ApiKey | None, adapter_key: ApiKey | None, variable: str | None = None
) -> ApiKey | None:
    """Return the first key that is found, or None if there is none. Adapters call this function."""
    return next((key for _, key in _candidates(provider, call_key, adapter_key, variable)), None)


async def resolved(provider: str, key: ApiKey) -> str:
    """Return `key` or, if it is a function, the key that it returns.

    Adapters call this function. Raises ``EngineError("missing_key")`` if `key` raises an error or does not return a
    key. An `LLMError`, however, is raised unchanged, so that the call can be retried.
    """
    if isinstance(key, str):
        return key

    def call() -> Any:
        with _wrap_errors(provider):
            return key()

    value = call() if iscoroutinefunction(key) else await in_thread(call, f"the api_key function for {provider}")
    with _wrap_errors(provider):
        value = await value if isawaitable(value) else value
    if not isinstance(value, str) or not value.strip():
        kind = "an empty string" if isinstance(value, str) else f"a value of type {type(value).__name__}"
        message = f"the api_key function for {provider} returned {kind}; it must return the key as a string"
        raise EngineError("missing_key", message, provider=provider)
    return value.strip()


@contextmanager
def _wrap_errors(provider: str) -> Generator[None]:
    # Do not quote the function's own error message, because it might contain a secret.
    try:
        yield
    except LLMError:
        raise
    except Exception as error:
        message = f"the api_key function for {provider} raised {type(error).__name__}; see the cause of this error"
        raise EngineError("missing_key", message, provider=provider) from error


def missing(provider: str, variable: str | None = None) -> EngineError:
    """Return the error for a missing key. The error's metadata lists the places that were searched.

    Adapters call this function.
    """
    variable = " or ".join(_variables(provider, variable))
    places = (
        "the call's api_key=",
        "the adapter's api_key=",
        f"the key store (rxllm.keys.put({provider!r}, ...))",
        f"the environment variable {variable}",
        _dotenv.described(variable),
    )
    message = (
        f"no API key for {provider}: set the environment variable {variable}, call rxllm.keys.put({provider!r}, ...), "
        f"or pass api_key=... to the call or the adapter; also searched: {places[-1]}"
    )
    return EngineError("missing_key", message, provider=provider, metadata={"checked_sources": list(places)})


def left_behind(provider: str, arguments: Sequence[str], variable: str | None = None) -> EngineError:
    """Return the error for a key that is missing because pickling the adapter left it out."""
    variable = " or ".join(_variables(provider, variable))
    message = (
        f"no API key for {provider}: the adapter was pickled without the secrets in its {' and '.join(arguments)}; "
        f"in the process that uses the adapter, set {variable} in the environment, or call "
        f"rxllm.keys.put({provider!r}, ...)"
    )
    return EngineError("missing_key", message, provider=provider, metadata={"left_behind": list(arguments)})


def _candidates(
    provider: str, call_key: ApiKey | None, adapter_key: ApiKey | None, variable: str | None
) -> Iterator[tuple[Source, ApiKey]]:
    variables = _variables(provider, variable)
    candidates: tuple[tuple[Source, ApiKey | None], ...] = (
        ("call", call_key),
        ("adapter", adapter_key),
        ("store", _store.get(provider)),
        *(("environment", os.environ.get(name)) for name in variables),
        *(("dotenv", _dotenv.variables.get(name)) for name in variables),
    )
    for place, value in candidates:
        if key := value.strip() if isinstance(value, str) else value:
            yield place, key
