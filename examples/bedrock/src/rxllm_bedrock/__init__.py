"""Amazon Bedrock for rxllm: the Converse API, and the compatible APIs of Bedrock Mantle."""

from typing import Any

from rxllm_bedrock._adapter import Bedrock, MantleChat, MantleClaude, MantleResponses

__all__ = ["Bedrock", "MantleChat", "MantleClaude", "MantleResponses", "connect", "connect_mantle"]


def connect(model: str, **options: Any) -> Bedrock:
    """Return the adapter for ``"bedrock:<model>"``."""
    return Bedrock(**options)


def connect_mantle(model: str, **options: Any) -> MantleChat | MantleClaude | MantleResponses:
    """Return the adapter for ``"bedrock-mantle:<model>"``. The model decides which API it speaks."""
    if "anthropic." in model:
        return MantleClaude(**options)
    return MantleResponses(**options) if "gpt-5" in model else MantleChat(**options)
