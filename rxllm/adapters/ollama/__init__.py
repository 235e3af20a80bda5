"""Ollama's own API: https://docs.ollama.com/api/chat."""

from rxllm.adapters.ollama.adapter import Ollama

__all__ = ["Ollama"]
