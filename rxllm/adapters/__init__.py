"""The adapters, with one package for each provider API.

An adapter turns a request into an HTTP request, and the HTTP response into events. In most packages, ``request`` builds
the request body, ``frames`` defines the frames of the response, and ``decoder`` turns them into events. Some packages
also have an image adapter, in ``images``.
"""

from typing import TYPE_CHECKING

from rxllm._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rxllm.adapters._connect import connect
    from rxllm.adapters._http import HTTPAdapter
    from rxllm.adapters._http_errors import http_error, provider_error
    from rxllm.adapters._protocol import Adapter, as_adapter
    from rxllm.adapters._requests import merge, response_format, select_parts
    from rxllm.adapters.anthropic import Anthropic
    from rxllm.adapters.azure import AzureChat, AzureResponses
    from rxllm.adapters.fake import Fake
    from rxllm.adapters.fake.images import FakeImages
    from rxllm.adapters.gemini import Gemini
    from rxllm.adapters.gemini.images import GeminiImages
    from rxllm.adapters.http_base import missing_model
    from rxllm.adapters.images import HTTPImageAdapter, ImageAdapter, as_image_adapter
    from rxllm.adapters.local import Local
    from rxllm.adapters.ollama import Ollama
    from rxllm.adapters.openai_chat import OpenAIChat
    from rxllm.adapters.openai_chat.images import OpenAIImages
    from rxllm.adapters.openai_responses import OpenAIResponses
    from rxllm.adapters.profiles import providers
    from rxllm.adapters.vertex import Vertex
    from rxllm.http import aiohttp_client

__all__ = [
    "Adapter",
    "Anthropic",
    "AzureChat",
    "AzureResponses",
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
    "Vertex",
    "aiohttp_client",
    "as_adapter",
    "as_image_adapter",
    "connect",
    "http_error",
    "merge",
    "missing_model",
    "provider_error",
    "providers",
    "response_format",
    "select_parts",
]

# If type checkers could see `__getattr__`, they would accept any name.
if not TYPE_CHECKING:
    # Each adapter is imported on first use.
    __getattr__ = lazy_exports(
        __name__,
        {
            "_connect": "connect",
            "_http": "HTTPAdapter",
            "_http_errors": "http_error provider_error",
            "_protocol": "Adapter as_adapter",
            "_requests": "merge response_format select_parts",
            "anthropic": "Anthropic",
            "azure": "AzureChat AzureResponses",
            "fake": "Fake",
            "fake.images": "FakeImages",
            "gemini": "Gemini",
            "gemini.images": "GeminiImages",
            "http_base": "missing_model",
            "images": "HTTPImageAdapter ImageAdapter as_image_adapter",
            "local": "Local",
            "ollama": "Ollama",
            "openai_chat": "OpenAIChat",
            "openai_chat.images": "OpenAIImages",
            "openai_responses": "OpenAIResponses",
            "profiles": "providers",
            "vertex": "Vertex",
            "rxllm.http": "aiohttp_client",
        },
    )


def __dir__() -> list[str]:
    return __all__
