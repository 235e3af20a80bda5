"""API keys: where they are looked up, and in which order. The first that is not empty is used.

================  ====================================================================
source            how a key gets there
================  ====================================================================
``"call"``        ``generate(..., api_key="...")``
``"adapter"``     ``OpenAIChat(api_key="...")``
``"store"``       ``rxllm.keys.put("openai", "...")``
``"environment"`` the variable ``OPENAI_API_KEY``
``"dotenv"``      the same, in a file, once ``rxllm.keys.load_dotenv()`` was called
================  ====================================================================

White space around a key is not part of it, and an empty string is not a key. Keys are kept here, in calls and in the
headers of requests, and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Literal

from rxllm.runtime._redact_secrets import redacted
from rxllm.values import EngineError
from rxllm.values.argument_checks import invalid_option

__all__ = [
    "Source",
    "clear",
    "delete",
    "find",
    "from_environment",
    "get",
    "load_dotenv",
    "missing",
    "put",
    "redacted",
    "source",
    "variable_for",
]


def __dir__() -> list[str]:
    return __all__


Source = Literal["call", "adapter", "store", "environment", "dotenv"]

_VARIABLES = {"google": "GOOGLE_API_KEY"}


class _Dotenv:
    """The variables of the dotenv file when it was read. They do not enter this process's environment."""

    def __init__(self) -> None:
        self.path: str | None = None
        self.variables: dict[str, str] = {}

    def described(self, variable: str) -> str:
        if self.path is None:
            return "a dotenv file (none is read; rxllm.keys.load_dotenv() does)"
        if not Path(self.path).is_file():
            return f"the dotenv file {self.path}, which does not exist"
        return f"{variable} in the dotenv file {self.path}"


_store: dict[str, str] = {}
_dotenv = _Dotenv()


def put(provider: str, key: str) -> None:
    """Keep `key` for `provider` in this process. Raise ``ValidationError("invalid_option")`` if it is not a string."""
    if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise invalid_option("key", "must be a string")
    _store[provider] = key


def delete(provider: str) -> None:
    """Forget the key of `provider`."""
    _store.pop(provider, None)


def clear() -> None:
    """Forget every key that was put here, and the dotenv file."""
    _store.clear()
    _dotenv.path = None
    _dotenv.variables = {}


def load_dotenv(path: str | Path | None = None) -> bool:
    """From now on, look in a dotenv file too: at `path`, or the nearest ``.env`` from the working directory upwards.

    Return whether there is such a file. It is read once, now, and the environment stays as it is. Needs
    ``rxllm[dotenv]``: without it ``EngineError("missing_dependency")`` is raised.
    """
    try:
        dotenv = import_module("dotenv")
    except ImportError as error:
        message = "reading a dotenv file needs python-dotenv: pip install 'rxllm[dotenv]'"
        raise EngineError("missing_dependency", message) from error
    file = str(path) if path is not None else dotenv.find_dotenv(usecwd=True)
    _dotenv.path = os.path.abspath(file or ".env")
    # A key is read as it is written: a "$" in it does not name another variable.
    variables: dict[str, str | None] = (
        dotenv.dotenv_values(_dotenv.path, interpolate=False) if os.path.exists(_dotenv.path) else {}
    )
    _dotenv.variables = {name: text for name, text in variables.items() if text}
    return os.path.isfile(_dotenv.path)


def get(provider: str) -> str | None:
    """Return the key of `provider` from the store, the environment or the dotenv file; None if there is none."""
    return find(provider, None, None)


def source(provider: str) -> Source | None:
    """Return where `get` finds the key of `provider`; None if nowhere."""
    return next((place for place, _ in _candidates(provider, None, None, None)), None)


def variable_for(provider: str) -> str:
    """Return the name of the environment variable for a provider's key.

    >>> variable_for("openai")
    'OPENAI_API_KEY'
    """
    return _VARIABLES.get(provider, f"{provider.upper().replace('-', '_')}_API_KEY")


def from_environment(variable: str) -> str | None:
    """Return the value of a variable, from the environment or the dotenv file; None if it is empty or not set."""
    values = (os.environ.get(variable), _dotenv.variables.get(variable))
    return next((text for value in values if value and (text := value.strip())), None)


def find(provider: str, call_key: str | None, adapter_key: str | None, variable: str | None = None) -> str | None:
    """Return the first key along the chain, or None if there is none; for adapters."""
    return next((key for _, key in _candidates(provider, call_key, adapter_key, variable)), None)


def missing(provider: str, variable: str | None = None) -> EngineError:
    """Return the error for a missing key, which names every place that was searched; for adapters."""
    variable = variable or variable_for(provider)
    places = (
        "the call's api_key=",
        "the adapter's api_key=",
        f"the key store (rxllm.keys.put({provider!r}, ...))",
        f"the environment variable {variable}",
        _dotenv.described(variable),
    )
    message = f"no API key for {provider}: looked in {', '.join(places)}"
    return EngineError("missing_key", message, provider=provider, metadata={"checked_sources": list(places)})


def _candidates(
    provider: str, call_key: str | None, adapter_key: str | None, variable: str | None
) -> Iterator[tuple[Source, str]]:
    variable = variable or variable_for(provider)
    candidates: tuple[tuple[Source, str | None], ...] = (
        ("call", call_key),
        ("adapter", adapter_key),
        ("store", _store.get(provider)),
        ("environment", os.environ.get(variable)),
        ("dotenv", _dotenv.variables.get(variable)),
    )
    for place, text in candidates:
        if text and (key := text.strip()):
            yield place, key
