"""The names of all providers, and the profiles of servers that offer Chat Completions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rxllm import plugins
from rxllm.values.argument_checks import did_you_mean, shown

__all__ = ["PROFILES", "Profile", "providers"]


@dataclass(frozen=True)
class Profile:
    """An OpenAI-compatible server.

    `key_variable` is None if the server does not use keys. `options` are merged into the body; the caller's options
    override them, and None removes a field. `names` maps request fields to the server's own names for them. If
    `call_id` is set, it is a pattern that every tool call id must match. `thoughts_field` is the message field in which
    thoughts are sent back, or None if the server does not need them.
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
    # By default, MiniMax puts thoughts into the text. It has deprecated max_tokens.
    "minimax": Profile(
        "https://api.minimax.io/v1",
        "MINIMAX_API_KEY",
        {"reasoning_split": True},
        {"max_tokens": "max_completion_tokens"},
    ),
    # Mistral rejects unknown fields such as stream_options. It always sends the usage.
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

OWN = {
    "anthropic": "Anthropic",
    "azure": "AzureChat",
    "azure-responses": "AzureResponses",
    "gemini": "Gemini",
    "google": "Gemini",
    "local": "Local",
    "ollama": "Ollama",
    "openai": "OpenAIChat",
    "openai-responses": "OpenAIResponses",
    "vertex": "Vertex",
}
"""The class in ``rxllm.adapters`` for each provider that has no profile."""

PACKAGES = {"bedrock": "rxllm-bedrock", "bedrock-mantle": "rxllm-bedrock"}
"""The package to install for each provider that is not part of rxllm."""


def providers() -> list[str]:
    """Return the names of all providers, including those from plugins."""
    plugins.tell_taken("rxllm.adapters", {*OWN, *PROFILES})
    return sorted({*OWN, *PROFILES, *plugins.names("rxllm.adapters")})


_MODEL_PATTERNS = {
    "openai": r"(chat)?gpt-|o\d|dall-e",
    "anthropic": "claude-",
    "gemini": "gemini-",
    "mistral": "(mistral|codestral|magistral|ministral)-",
    "deepseek": "deepseek-",
    "xai": "grok-",
    "ollama": r"(llama|qwen|gemma|phi)[-\d]",
}
"""A pattern for each provider's model names, used to suggest the provider if the caller left it out."""


def unknown_provider(provider: str, model: str) -> str:
    if package := PACKAGES.get(provider):
        return f"{provider} is in a package of its own: run pip install {package}"
    name, known = f"{provider}:{model}" if model else provider, providers()
    first, _, rest = name.partition("/")
    if first in known and rest:
        return f"a model's name has the form 'provider:model', not {name!r}: write {f'{first}:{rest}'!r}"
    for family, pattern in _MODEL_PATTERNS.items():
        if re.match(pattern, name):
            return f"{name!r} names a model without its provider: write {f'{family}:{name}'!r}"
    near = did_you_mean(provider, known)
    if len(provider.split()) > 1 and not near:
        return f"{shown(name)} is not the name of a model; pass the engine first, as in generate('openai:gpt-5', 'Hi')"
    return f"there is no provider {provider!r}{near}; the providers are: {', '.join(known)}. Write provider:model"
