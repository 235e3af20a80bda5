"""Use the tools of MCP servers, over HTTP or stdio: https://modelcontextprotocol.io/specification/2026-07-28.

`tools` lists a server's tools as ``rxllm.Tool``s. `watch` lists them now, and again after each change. Both accept a
URL, a command as a list, or an `HTTP` or `Stdio` connection.
"""

from rxllm.mcp._http import HTTP
from rxllm.mcp._stdio import Stdio
from rxllm.mcp._tools import Server, tools, watch

__all__ = ["HTTP", "Server", "Stdio", "tools", "watch"]
