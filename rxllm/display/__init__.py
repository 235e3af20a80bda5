"""Show streams to people, in a notebook or a terminal."""

from rxllm.display._show import show

__all__ = ["show"]
