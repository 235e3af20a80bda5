"""For rxllm: Cohere's chat API, and an operator for citations."""

from rxllm_cohere._adapter import Cohere
from rxllm_cohere._citations import citations

__all__ = ["Cohere", "citations", "connect"]


def connect(model: str) -> Cohere:
    """The adapter that ``"cohere:..."`` means; the request itself will name the model."""
    return Cohere()
