"""One file per provider: values to an HTTP request, and its answer's bytes to events."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxllm.adapters._aiohttp_client import aiohttp_client
    from rxllm.adapters._fake_images import FakeImages
    from rxllm.adapters._gemini_images import GeminiImages
    from rxllm.adapters._http import HTTPAdapter
    from rxllm.adapters._http_errors import http_error, provider_error
    from rxllm.adapters._http_images import HTTPImageAdapter
    from rxllm.adapters._image_adapter import ImageAdapter, as_image_adapter
    from rxllm.adapters._openai_chat import OpenAIChat
    from rxllm.adapters._openai_images import OpenAIImages
    from rxllm.adapters._openai_responses import OpenAIResponses
    from rxllm.adapters._plain import Adapter, as_adapter
    from rxllm.adapters.anthropic import Anthropic
    from rxllm.adapters.fake import Fake
    from rxllm.adapters.gemini import Gemini
    from rxllm.adapters.local import Local
    from rxllm.adapters.ollama import Ollama
    from rxllm.adapters.profiles import connect, providers

__all__ = [
    "Adapter",
    "Anthropic",
    "Fake",
    "FakeImages",
    "Gemini",
    "GeminiImages",
    "HTTPAdapter",
    "HTTPImageAdapter",
    "ImageAdapter",
    "Local",
    "Ollama",
    "OpenAIChat",
    "OpenAIImages",
    "OpenAIResponses",
    "aiohttp_client",
    "as_adapter",
    "as_image_adapter",
    "connect",
    "http_error",
    "provider_error",
    "providers",
]

_FILES = {
    "Adapter": "_plain",
    "Anthropic": "anthropic",
    "Fake": "fake",
    "FakeImages": "_fake_images",
    "Gemini": "gemini",
    "GeminiImages": "_gemini_images",
    "HTTPAdapter": "_http",
    "HTTPImageAdapter": "_http_images",
    "ImageAdapter": "_image_adapter",
    "Local": "local",
    "Ollama": "ollama",
    "OpenAIChat": "_openai_chat",
    "OpenAIImages": "_openai_images",
    "OpenAIResponses": "_openai_responses",
    "aiohttp_client": "_aiohttp_client",
    "as_adapter": "_plain",
    "as_image_adapter": "_image_adapter",
    "connect": "profiles",
    "http_error": "_http_errors",
    "provider_error": "_http_errors",
    "providers": "profiles",
}


def __getattr__(name: str) -> Any:
    # A program needs one or two of them, and the files of the others are not read.
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
