"""Anthropic's Messages API: https://platform.claude.com/docs/en/api/messages."""

from rxllm.adapters.anthropic.adapter import Anthropic

__all__ = ["Anthropic"]
