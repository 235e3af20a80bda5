"""Use the tools of MCP servers, over HTTP or stdio: https://modelcontextprotocol.io/specification/2026-07-28.

`tools` lists a server's tools as plain ``rxllm.Tool``s. `watch` lists them now, and again whenever they change. Pass
the URL of a server, or a list with the command that starts it. To set more options, pass an `HTTP` or `Stdio`
connection instead.
"""

from rxllm.mcp._http import HTTP
from rxllm.mcp._stdio import Stdio
from rxllm.mcp._tools import Server, tools, watch

__all__ = ["HTTP", "Server", "Stdio", "tools", "watch"]
