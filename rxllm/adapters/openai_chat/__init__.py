"""OpenAI's Chat Completions, and every server that speaks it: https://platform.openai.com/docs/api-reference/chat."""

from rxllm.adapters.openai_chat.adapter import OpenAIChat

__all__ = ["OpenAIChat"]
