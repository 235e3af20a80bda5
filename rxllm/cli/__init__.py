"""The terminal client: ``python -m rxllm ask``, ``chat``, ``serve``, ``worker``, ``providers`` and ``new-plugin``."""

from rxllm.cli._main import main

__all__ = ["main"]
