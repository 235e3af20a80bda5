"""What people see, in a notebook and in a terminal."""

from rxllm.display._show import show

__all__ = ["show"]
