"""The error of a line in Ollama's stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxllm.adapters._http_errors import provider_error
from rxllm.adapters.ollama.frames import PROVIDER
from rxllm.values import AdapterError


def stream_error(payload: Mapping[str, Any]) -> AdapterError:
    """Return the error that a line's message describes; a server error if the message is not understood."""
    error = provider_error(PROVIDER, payload)
    return error if error.reason != "unknown" else provider_error(PROVIDER, {"type": "server_error", **payload})
