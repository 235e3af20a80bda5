"""Cohere's chat API and an operator for citations, for rxllm."""

from typing import Any

from rxllm_cohere._adapter import Cohere
from rxllm_cohere._citations import citations

__all__ = ["Cohere", "citations", "connect"]


def connect(model: str, **options: Any) -> Cohere:
    """Return the adapter for ``"cohere:<model>"``, with options such as ``base_url`` from ``Engine(...)``.

    The request names the model, so the adapter does not need it.
    """
    return Cohere(**options)
