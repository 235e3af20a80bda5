"""What an error inside Ollama's stream means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxllm.adapters._http_errors import provider_error
from rxllm.adapters.ollama.frames import PROVIDER
from rxllm.values import AdapterError


def stream_error(payload: Mapping[str, Any]) -> AdapterError:
    """The error of a line: its words alone tell what it is, and where they do not, the server has failed."""
    error = provider_error(PROVIDER, payload)
    return error if error.reason != "unknown" else provider_error(PROVIDER, {"type": "server_error", **payload})
