"""The client under test of @modelcontextprotocol/conformance: a program whose argument is the URL of its server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import rxllm
from rxllm import Fake, Tool, ToolCall, ToolContext, mcp

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))


async def call(tools: tuple[Tool, ...], name: str, arguments: dict[str, Any]) -> None:
    """Let a chat call a tool; what it asks is confirmed."""
    model = Fake(ToolCall("c1", name, arguments), "Done.")
    result = await rxllm.chat(model, "Go.", tools=tools, tool_timeout=10)
    while result.pending_question is not None:
        answers = {result.pending_tool_call_id or "": "yes"}
        result = await rxllm.resume(Fake("Done."), result, results=answers, tools=tools)
    print(name, [message.text for message in result.thread if message.role == "tool"])


def arguments_for(tool: Tool) -> dict[str, Any]:
    samples = {"string": "text", "integer": 1, "number": 2, "boolean": True, "object": {}, "array": []}
    properties: dict[str, Any] = tool.schema.get("properties", {})
    return {name: samples.get(place.get("type"), "text") for name, place in properties.items()}


async def main(url: str) -> None:
    async with mcp.HTTP(url) as server:
        tools = await mcp.tools(server)
        by_name = {tool.name: tool for tool in tools}
        if SCENARIO == "json-schema-2020-12-preservation":
            await call(tools, "json_schema_echo", {"schema": by_name["json_schema_2020_12_tool"].schema})
        elif "toolCalls" in CONTEXT:
            for entry in CONTEXT["toolCalls"]:
                # Not by a chat, which refuses a null that the schema of the tool does not allow.
                tool, arguments = by_name[entry["name"]], entry["arguments"]
                await tool.bind(arguments, ToolContext(ToolCall("c1", tool.name, arguments)))()
        elif SCENARIO != "json-schema-ref-no-deref":
            for name, tool in by_name.items():
                await call(tools, name, arguments_for(tool))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
