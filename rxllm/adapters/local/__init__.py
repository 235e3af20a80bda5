"""Models that run in this process, with llama.cpp."""

from rxllm.adapters.local.adapter import Local

__all__ = ["Local"]
