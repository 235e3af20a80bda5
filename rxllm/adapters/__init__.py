"""One file per provider: values to an HTTP request, and its answer's bytes to events."""

from rxllm.adapters._fake import Fake
from rxllm.adapters._http import HTTPAdapter
from rxllm.adapters._local import Local
from rxllm.adapters._openai_chat import OpenAIChat
from rxllm.adapters._plain import Adapter, as_adapter

__all__ = ["Adapter", "Fake", "HTTPAdapter", "Local", "OpenAIChat", "as_adapter"]
