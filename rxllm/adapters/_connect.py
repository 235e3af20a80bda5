"""Create adapters by provider name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from hashlib import sha256
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from rxllm import keys, plugins
from rxllm.adapters.openai_chat import OpenAIChat
from rxllm.adapters.profiles import OWN, PACKAGES, PROFILES, unknown_provider
from rxllm.http.clients import chosen_transport
from rxllm.http.secrets import public_url
from rxllm.values import Call, EngineError, Message, Request
from rxllm.values.argument_checks import did_you_mean

if TYPE_CHECKING:
    import httpx


def connect(provider: str, model: str = "", **options: Any) -> Any:
    """Return the adapter for `provider`, which must be one of `providers`.

    Without `options`, all calls with the same `provider` and `model` return the same adapter, as long as the transport
    and the base URL in the environment stay the same. The adapter looks up its key as described in ``rxllm.keys``. With
    `options`, such as `api_key`, each call returns a new adapter.

    Raises ``EngineError`` with the reason ``unknown_provider`` or ``unknown_option`` if there is no such provider or
    option. For rxllm's own adapters, the message names the valid ones. If the provider's package is not installed or
    its plugin fails, the reason is ``missing_dependency`` or ``invalid_engine``, and the message names the package.
    """
    if provider in OWN or provider in PROFILES:
        _warn_of_taken_names()
        local_model = model if provider == "local" else ""
        return _make(provider, local_model, options) if options else _shared(provider, local_model, _settings(provider))
    try:
        return plugins.connect(provider, model, options)
    except KeyError:
        reason = "missing_dependency" if provider in PACKAGES else "unknown_provider"
        raise EngineError(reason, unknown_provider(provider, model), provider=provider) from None


@lru_cache  # limited in size, because each local model adds an entry
def _shared(provider: str, model: str, settings: tuple[Any, ...]) -> Any:
    return _make(provider, model, {})


def _make(provider: str, model: str, options: Mapping[str, Any]) -> Any:
    make, arguments = _class_of(provider), [model or None] if provider == "local" else []
    names = [name for name in signature(make).parameters if name != "model"]
    if unknown := sorted(options.keys() - {*names}):
        message = f"the adapter for {provider} has no option {unknown[0]!r}{did_you_mean(unknown[0], names)}; it takes "
        raise EngineError("unknown_option", message + ", ".join(names), provider=provider)
    return Compatible(provider, **options) if provider in PROFILES else make(*arguments, **options)


def _class_of(provider: str) -> Any:
    return getattr(import_module("rxllm.adapters"), OWN.get(provider, "OpenAIChat"))


def _settings(provider: str) -> tuple[Any, ...]:
    """Return the settings that the shared adapter depends on. If they change, a new adapter is created."""
    if provider == "local":
        return ()
    variable = None if provider in PROFILES else _class_of(provider).base_url_variable
    return keys.from_environment(variable) if variable else None, chosen_transport()


@cache  # reading all entry points takes several milliseconds, so do it only once
def _warn_of_taken_names() -> None:
    plugins.tell_taken("rxllm.adapters", {*OWN, *PROFILES})


class Compatible(OpenAIChat):
    """An `OpenAIChat` for a provider that has a profile.

    >>> Compatible("groq")
    Compatible('groq', 'https://api.groq.com/openai/v1')
    """

    def __init__(self, provider: str, **connection: Any) -> None:
        self.profile = PROFILES[provider]
        self.provider = provider
        self.default_base_url = self.profile.base_url
        self.base_url_variable = None  # ``OPENAI_BASE_URL`` applies to OpenAI only
        self.key_variable = self.profile.key_variable
        self.needs_key = self.key_variable is not None
        self.thoughts_field = self.profile.thoughts_field
        super().__init__(**connection)

    def build(self, request: Request, call: Call) -> httpx.Request:
        profile = self.profile
        renamed = {name: getattr(request, field) for field, name in profile.names.items()}
        changed: dict[str, Any] = dict.fromkeys(profile.names)
        changed["options"] = {**profile.options, **renamed, **request.options}
        if profile.call_id:
            changed["messages"] = tuple(_fit_ids(message, profile.call_id) for message in request.messages)
        return super().build(replace(request, **changed), call)

    def __repr__(self) -> str:
        return f"Compatible({self.provider!r}, {public_url(self.base_url)!r})"


def _fit_ids(message: Message, pattern: str) -> Message:
    # Another provider's ids may not match the pattern.
    calls = tuple(replace(call, id=_fit_id(call.id, pattern)) for call in message.tool_calls)
    result_id = message.tool_call_id
    return replace(message, tool_calls=calls, tool_call_id=result_id and _fit_id(result_id, pattern))


def _fit_id(id: str, pattern: str) -> str:
    return id if re.fullmatch(pattern, id) else sha256(id.encode()).hexdigest()[:9]
