"""Google's Gemini API: https://ai.google.dev/api/generate-content."""

from rxllm.adapters.gemini.adapter import Gemini

__all__ = ["Gemini"]
