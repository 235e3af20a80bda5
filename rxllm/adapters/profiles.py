"""The providers that speak OpenAI's Chat Completions: where they are, and the little in which they differ.

A profile is data. `providers` lists every name that ``Engine.from_model("provider:model")`` understands, and `connect`
makes the adapter of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rxllm import plugins
from rxllm.adapters._openai_chat import OpenAIChat
from rxllm.runtime._redact_secrets import public_url
from rxllm.values import Call, EngineError, Message, Request
from rxllm.values.arguments import did_you_mean

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True)
class Profile:
    """A server that is compatible with OpenAI's: its address and the variable of its key, None where none is needed.

    `options` are merged into the body below the caller's own (None takes a field out); `names` says which fields it
    calls differently; `call_id` is what the ids of calls must look like, where it minds, and `thoughts_field` where its
    thoughts go back to it: those that want them refuse a tool run without.
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
    # Unasked, it leaves its thoughts in the text, between tags. Its max_tokens is deprecated, as is that of xAI.
    "minimax": Profile(
        "https://api.minimax.io/v1",
        "MINIMAX_API_KEY",
        {"reasoning_split": True},
        {"max_tokens": "max_completion_tokens"},
    ),
    # It refuses fields that it does not know, and ids of calls that are not its own, and says its usage unasked.
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
"""Of ``rxllm.adapters``, which imports what is asked for."""


class Compatible(OpenAIChat):
    """`OpenAIChat` for the provider of a profile; it needs that provider's own key.

    >>> Compatible("groq")
    Compatible('groq', 'https://api.groq.com/openai/v1')
    """

    def __init__(self, provider: str, **connection: Any) -> None:
        self.profile = PROFILES[provider]
        self.provider = provider
        self.default_base_url = self.profile.base_url
        self.key_variable = self.profile.key_variable
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

    def key(self, call: Call) -> str | None:
        return super().key(call) if self.key_variable else self._find_key(call)

    def __repr__(self) -> str:
        return f"Compatible({self.provider!r}, {public_url(self.base_url)!r})"


def _with_ids(message: Message, wanted: str) -> Message:
    # Calls that another provider made; a call and its result get the same id.
    calls = tuple(replace(call, id=_fitting(call.id, wanted)) for call in message.tool_calls)
    answered = message.tool_call_id
    return replace(message, tool_calls=calls, tool_call_id=answered and _fitting(answered, wanted))


def _fitting(id: str, wanted: str) -> str:
    return id if re.fullmatch(wanted, id) else sha256(id.encode()).hexdigest()[:9]


def providers() -> list[str]:
    """The names of all providers: built in, compatible, and those of installed plugins, which are not imported."""
    plugins.tell_taken("rxllm.adapters", {*_OWN, *PROFILES})
    return sorted({*_OWN, *PROFILES, *plugins.names("rxllm.adapters")})


def connect(provider: str, model: str = "") -> Any:
    """The adapter of `provider`, as `providers` names it, with its key from the usual places. All who ask for one by
    its name share it, and its connections.

    Raises ``EngineError``: ``unknown_provider``, which names those there are; ``missing_dependency`` or
    ``invalid_engine`` for a plugin that fails, with whose it is.
    """
    if provider in _OWN or provider in PROFILES:
        _tell_taken()
        return _shared(provider, model if provider == "local" else "")
    try:
        return plugins.connect(provider, model)
    except KeyError:
        known = providers()
        called = f"{provider!r}{did_you_mean(provider, known)}"
        message = f"no provider is called {called}; there are: {', '.join(known)}. Write provider:model"
        raise EngineError("unknown_provider", message, provider=provider) from None


@lru_cache  # of as many local models as that holds
def _shared(provider: str, model: str) -> Any:
    if provider in PROFILES:
        return Compatible(provider)
    made = getattr(import_module("rxllm.adapters"), _OWN[provider])
    return made(model or None) if provider == "local" else made()


@cache  # a look at all that is installed takes some milliseconds
def _tell_taken() -> None:
    plugins.tell_taken("rxllm.adapters", {*_OWN, *PROFILES})
