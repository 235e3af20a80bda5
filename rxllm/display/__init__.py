"""Show streams to people, in a notebook or a terminal."""

from rxllm.display._marble_diagram import MarbleDiagram, marble_diagram
from rxllm.display._show import show

__all__ = ["MarbleDiagram", "marble_diagram", "show"]
