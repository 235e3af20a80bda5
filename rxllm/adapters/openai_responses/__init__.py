"""OpenAI's Responses API, and servers that speak it: https://platform.openai.com/docs/api-reference/responses."""

from rxllm.adapters.openai_responses.adapter import OpenAIResponses

__all__ = ["OpenAIResponses"]
