"""One file per provider: values to an HTTP request, and its answer's bytes to events."""

from rxllm.adapters._anthropic import Anthropic
from rxllm.adapters._fake import Fake
from rxllm.adapters._fake_images import FakeImages
from rxllm.adapters._gemini import Gemini
from rxllm.adapters._gemini_images import GeminiImages
from rxllm.adapters._http import HTTPAdapter
from rxllm.adapters._http_errors import http_error, provider_error
from rxllm.adapters._http_images import HTTPImageAdapter
from rxllm.adapters._image_adapter import ImageAdapter, as_image_adapter
from rxllm.adapters._local import Local
from rxllm.adapters._ollama import Ollama
from rxllm.adapters._openai_chat import OpenAIChat
from rxllm.adapters._openai_images import OpenAIImages
from rxllm.adapters._openai_responses import OpenAIResponses
from rxllm.adapters._plain import Adapter, as_adapter
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
    "as_adapter",
    "as_image_adapter",
    "connect",
    "http_error",
    "provider_error",
    "providers",
]
