"""Providers by name: `connect` makes the adapter of one, and profiles describe those that speak Chat Completions.

A profile is data: a provider's address, and the few points in which its server differs from OpenAI's. `providers` lists
every name that ``Engine.from_model("provider:model")`` understands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from hashlib import sha256
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from rxllm import keys, plugins
from rxllm.adapters.openai_chat import OpenAIChat
from rxllm.http._clients import chosen_transport
from rxllm.http.secrets import public_url
from rxllm.values import Call, EngineError, Message, Request
from rxllm.values.argument_checks import did_you_mean, shown

if TYPE_CHECKING:
    import httpx


__all__ = ["PROFILES", "Compatible", "Profile", "connect", "providers"]


@dataclass(frozen=True)
class Profile:
    """A server that is compatible with OpenAI's: its address, and the environment variable of its key, if it needs one.

    `options` are merged into the body below the caller's own (None removes a field). `names` are the server's names for
    fields of the request that it calls differently. `call_id` is the pattern of the ids of tool calls, for servers that
    check it. `thoughts_field` is the field of the message in which thoughts are sent back: servers that have one reject
    a tool result without the thoughts before it.
    """

    base_url: str
    key_variable: str | None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    call_id: str | None = None
    thoughts_field: str | None = None


PROFILES: dict[str, Profile] = {
    "alibaba": Profile("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    "cerebras": Profile("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "deepseek": Profile("https://api.deepseek.com", "DEEPSEEK_API_KEY", thoughts_field="reasoning_content"),
    "fireworks": Profile("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "groq": Profile("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "huggingface": Profile("https://router.huggingface.co/v1", "HF_TOKEN"),
    "llamacpp": Profile("http://localhost:8080/v1", None),
    "lmstudio": Profile("http://localhost:1234/v1", None),
    # By default it leaves its thoughts in the text, between tags. Its max_tokens is deprecated, like that of xAI.
    "minimax": Profile(
        "https://api.minimax.io/v1",
        "MINIMAX_API_KEY",
        {"reasoning_split": True},
        {"max_tokens": "max_completion_tokens"},
    ),
    # It rejects fields that it does not know and ids of tool calls in other forms; it always sends its usage.
    "mistral": Profile(
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        {"stream_options": None},
        {"seed": "random_seed"},
        call_id="[a-zA-Z0-9]{9}",
    ),
    "moonshot": Profile("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", thoughts_field="reasoning_content"),
    "nvidia": Profile("https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY"),
    "openrouter": Profile("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "perplexity": Profile("https://api.perplexity.ai", "PERPLEXITY_API_KEY"),
    "together": Profile("https://api.together.ai/v1", "TOGETHER_API_KEY"),
    "vllm": Profile("http://localhost:8000/v1", None),
    "xai": Profile("https://api.x.ai/v1", "XAI_API_KEY", names={"max_tokens": "max_completion_tokens"}),
    "zai": Profile("https://api.z.ai/api/paas/v4", "ZAI_API_KEY", thoughts_field="reasoning_content"),
}

_OWN = {
    "anthropic": "Anthropic",
    "gemini": "Gemini",
    "google": "Gemini",
    "local": "Local",
    "ollama": "Ollama",
    "openai": "OpenAIChat",
    "openai-responses": "OpenAIResponses",
}
"""The names in ``rxllm.adapters`` of the other adapters."""


class Compatible(OpenAIChat):
    """`OpenAIChat` for the provider of a profile, with that provider's own key.

    >>> Compatible("groq")
    Compatible('groq', 'https://api.groq.com/openai/v1')
    """

    def __init__(self, provider: str, **connection: Any) -> None:
        self.profile = PROFILES[provider]
        self.provider = provider
        self.default_base_url = self.profile.base_url
        self.base_url_variable = None  # OPENAI_BASE_URL is OpenAI's
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
            changed["messages"] = tuple(_with_ids(message, profile.call_id) for message in request.messages)
        return super().build(replace(request, **changed), call)

    def __repr__(self) -> str:
        return f"Compatible({self.provider!r}, {public_url(self.base_url)!r})"


def _with_ids(message: Message, pattern: str) -> Message:
    # Another provider may have made the calls. A call and its result get the same id.
    calls = tuple(replace(call, id=_fitting(call.id, pattern)) for call in message.tool_calls)
    result_id = message.tool_call_id
    return replace(message, tool_calls=calls, tool_call_id=result_id and _fitting(result_id, pattern))


def _fitting(id: str, pattern: str) -> str:
    return id if re.fullmatch(pattern, id) else sha256(id.encode()).hexdigest()[:9]


def providers() -> list[str]:
    """Return the names of all providers: built in, compatible, and of installed plugins, which are not imported."""
    plugins.tell_taken("rxllm.adapters", {*_OWN, *PROFILES})
    return sorted({*_OWN, *PROFILES, *plugins.names("rxllm.adapters")})


def connect(provider: str, model: str = "", **options: Any) -> Any:
    """Return the adapter of `provider`, one of `providers`, which finds its key in the usual places.

    All callers of the same name share one adapter, and its connections; with `options`, such as `api_key` and
    `base_url`, it is a new one. Raise ``EngineError``: ``unknown_provider``, with the names that exist;
    ``unknown_option``, with those that the adapter takes; ``missing_dependency`` or ``invalid_engine`` for a plugin
    that fails, with its package.
    """
    if provider in _OWN or provider in PROFILES:
        _tell_taken()
        local_model = model if provider == "local" else ""
        return _new(provider, local_model, options) if options else _shared(provider, local_model, _settings(provider))
    try:
        return plugins.connect(provider, model, options)
    except KeyError:
        raise EngineError("unknown_provider", _unknown(provider, model), provider=provider) from None


_FAMILIES = {
    "openai": r"(chat)?gpt-|o\d|dall-e",
    "anthropic": "claude-",
    "gemini": "gemini-",
    "mistral": "(mistral|codestral|magistral|ministral)-",
    "deepseek": "deepseek-",
    "xai": "grok-",
    "ollama": r"(llama|qwen|gemma|phi)[-\d]",
}
"""How the names of models begin, by the provider to suggest for them."""


def _unknown(provider: str, model: str) -> str:
    """Return what to write instead of a name whose first part is not a provider."""
    name, known = f"{provider}:{model}" if model else provider, providers()
    first, _, rest = name.partition("/")
    if first in known and rest:
        return f"a model is named as 'provider:model', not {name!r}: write {f'{first}:{rest}'!r}"
    for family, pattern in _FAMILIES.items():
        if re.match(pattern, name):
            return f"{name!r} names a model without its provider: write {f'{family}:{name}'!r}"
    near = did_you_mean(provider, known)
    if len(provider.split()) > 1 and not near:
        return f"{shown(name)} is not the name of a model; the engine comes first, as in generate('openai:gpt-5', 'Hi')"
    what = f"there is no provider {provider!r}{near}"
    return f"{what}; there are: {', '.join(known)}. Write provider:model"


@lru_cache  # bounded, because every path of a local model is a key
def _shared(provider: str, model: str, settings: tuple[Any, ...]) -> Any:
    return _new(provider, model, {})


def _new(provider: str, model: str, options: Mapping[str, Any]) -> Any:
    make, arguments = _class_of(provider), [model or None] if provider == "local" else []
    names = [name for name in signature(make).parameters if name != "model"]
    if unknown := sorted(options.keys() - {*names}):
        message = f"the adapter of {provider} has no option {unknown[0]!r}{did_you_mean(unknown[0], names)}; it takes "
        raise EngineError("unknown_option", message + ", ".join(names), provider=provider)
    return Compatible(provider, **options) if provider in PROFILES else make(*arguments, **options)


def _class_of(provider: str) -> Any:
    return getattr(import_module("rxllm.adapters"), _OWN.get(provider, "OpenAIChat"))


def _settings(provider: str) -> tuple[Any, ...]:
    """Return the address of `provider` in the environment, and the transport: a change means another adapter."""
    if provider == "local":
        return ()
    variable = None if provider in PROFILES else _class_of(provider).base_url_variable
    return keys.from_environment(variable) if variable else None, chosen_transport()


@cache  # reading the entry points of all packages takes some milliseconds
def _tell_taken() -> None:
    plugins.tell_taken("rxllm.adapters", {*_OWN, *PROFILES})
