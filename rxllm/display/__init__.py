"""Show streams to people, in a notebook or a terminal."""

from rxllm.display._show import show
from rxllm.display._values import value_html

__all__ = ["show", "value_html"]
