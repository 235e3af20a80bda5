"""One package per wire: values to an HTTP request, and the bytes of its answer to events.

A wire's package has ``adapter`` (its class), ``request`` (values to the HTTP body), ``decoder`` (frames to events),
``frames`` (their types) and, where they are its own, ``errors``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxllm.adapters._http import HTTPAdapter
    from rxllm.adapters._http_base import missing_model
    from rxllm.adapters._http_errors import http_error, provider_error
    from rxllm.adapters._protocol import Adapter, as_adapter
    from rxllm.adapters.anthropic import Anthropic
    from rxllm.adapters.fake import Fake
    from rxllm.adapters.gemini import Gemini
    from rxllm.adapters.local import Local
    from rxllm.adapters.ollama import Ollama
    from rxllm.adapters.openai_chat import OpenAIChat
    from rxllm.adapters.openai_responses import OpenAIResponses
    from rxllm.adapters.profiles import connect, providers
    from rxllm.http import aiohttp_client
    from rxllm.images import (
        FakeImages,
        GeminiImages,
        HTTPImageAdapter,
        ImageAdapter,
        OpenAIImages,
        as_image_adapter,
    )

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
    "missing_model",
    "provider_error",
    "providers",
]

_MODULES = {
    "Adapter": "_protocol",
    "Anthropic": "anthropic",
    "Fake": "fake",
    "Gemini": "gemini",
    "HTTPAdapter": "_http",
    "Local": "local",
    "Ollama": "ollama",
    "OpenAIChat": "openai_chat",
    "OpenAIResponses": "openai_responses",
    "as_adapter": "_protocol",
    "connect": "profiles",
    "http_error": "_http_errors",
    "missing_model": "_http_base",
    "provider_error": "_http_errors",
    "providers": "profiles",
}

_IMAGES = {"FakeImages", "GeminiImages", "HTTPImageAdapter", "ImageAdapter", "OpenAIImages", "as_image_adapter"}
"""Names that live in ``rxllm.images``, a layer above this one: looked up there on use, never imported from here."""

if not TYPE_CHECKING:  # to a type checker every name would be there

    def __getattr__(name: str) -> Any:
        # A program needs one or two of them; the modules of the others are not imported.
        if name in _IMAGES:
            return getattr(import_module("rxllm.images"), name)
        if name == "aiohttp_client":
            from rxllm.http import aiohttp_client

            return aiohttp_client
        if name not in _MODULES:
            from rxllm.values.argument_checks import no_attribute

            raise no_attribute(f"module {__name__!r}", name, __all__)
        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return __all__
