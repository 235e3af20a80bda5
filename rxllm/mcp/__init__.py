"""Tools of MCP servers, over HTTP and stdio: https://modelcontextprotocol.io/specification/2026-07-28.

`tools` lists a server's tools as plain ``rxllm.Tool``s; `watch` lists them again whenever they change. A server is a
URL, a command as a list, or a connection with options: `HTTP` or `Stdio`.
"""

from rxllm.mcp._http import HTTP
from rxllm.mcp._stdio import Stdio
from rxllm.mcp._tools import Server, tools, watch

__all__ = ["HTTP", "Server", "Stdio", "tools", "watch"]
