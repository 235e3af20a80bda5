"""The providers that speak OpenAI's Chat Completions: where they are, and the little in which they differ.

A profile is data. `providers` lists every name that ``Engine.from_model("provider:model")`` understands, and `connect`
makes the adapter of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rxllm import plugins
from rxllm.adapters._anthropic import Anthropic
from rxllm.adapters._gemini import Gemini
from rxllm.adapters._local import Local
from rxllm.adapters._ollama import Ollama
from rxllm.adapters._openai_chat import OpenAIChat
from rxllm.adapters._openai_responses import OpenAIResponses
from rxllm.values import Call, EngineError, Request

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True)
class Profile:
    """A server that is compatible with OpenAI's: its address and the variable of its key, None where it needs none.

    `options` are merged into the body below the caller's own (None takes a field out); `names` says which fields it
    calls differently.
    """

    base_url: str
    key_variable: str | None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    names: Mapping[str, str] = field(default_factory=dict[str, str])


PROFILES: dict[str, Profile] = {
    "alibaba": Profile("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    "cerebras": Profile("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "deepseek": Profile("https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "fireworks": Profile("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "groq": Profile("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "huggingface": Profile("https://router.huggingface.co/v1", "HF_TOKEN"),
    "llamacpp": Profile("http://localhost:8080/v1", None),
    "lmstudio": Profile("http://localhost:1234/v1", None),
    "minimax": Profile("https://api.minimax.io/v1", "MINIMAX_API_KEY"),
    # It refuses fields that it does not know, and says its usage without being asked.
    "mistral": Profile(
        "https://api.mistral.ai/v1", "MISTRAL_API_KEY", {"stream_options": None}, {"seed": "random_seed"}
    ),
    "moonshot": Profile("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "nvidia": Profile("https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY"),
    "openrouter": Profile("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "perplexity": Profile("https://api.perplexity.ai", "PERPLEXITY_API_KEY"),
    "together": Profile("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "vllm": Profile("http://localhost:8000/v1", None),
    "xai": Profile("https://api.x.ai/v1", "XAI_API_KEY"),
    "zai": Profile("https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
}

_OWN: dict[str, Callable[[str], Any]] = {
    "anthropic": lambda model: Anthropic(),
    "gemini": lambda model: Gemini(),
    "google": lambda model: Gemini(),
    "local": lambda model: Local(model or None),
    "ollama": lambda model: Ollama(),
    "openai": lambda model: OpenAIChat(),
    "openai-responses": lambda model: OpenAIResponses(),
}


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
        super().__init__(**connection)

    def build(self, request: Request, call: Call) -> httpx.Request:
        renamed = {name: getattr(request, field) for field, name in self.profile.names.items()}
        kept = dict.fromkeys(self.profile.names)
        return super().build(
            replace(request, options={**self.profile.options, **renamed, **request.options}, **kept), call
        )

    def __repr__(self) -> str:
        return f"Compatible({self.provider!r}, {self.base_url!r})"


def providers() -> list[str]:
    """The names of all providers: built in, compatible, and those of installed plugins."""
    return sorted({*_OWN, *PROFILES, *plugins.names("rxllm.adapters")})


def connect(provider: str, model: str = "") -> Any:
    """The adapter of `provider`, as `providers` names it, with its key from the usual places.

    Raises ``EngineError("unknown_provider")``, which names those there are.
    """
    if provider in _OWN:
        return _OWN[provider](model)
    if provider in PROFILES:
        return Compatible(provider)
    try:
        return plugins.load("rxllm.adapters", provider)(model)
    except KeyError:
        message = f"no provider is called {provider!r}; there are: {', '.join(providers())}. Write provider:model"
        raise EngineError("unknown_provider", message, provider=provider) from None
