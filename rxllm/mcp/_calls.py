"""One call of a server's tool: its progress, its result, and what it asks the user."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, cast

from rxllm import AdapterError, FilePart, Image, ImagePart, LLMError, ToolContext, ToolError
from rxllm.mcp._connection import Connection, NeedsUserError
from rxllm.mcp._parameter_headers import Path, mirrored
from rxllm.mcp._protocol import PROVIDER, Json, object_of
from rxllm.mcp._questions import Questions

MAX_ROUNDS = 10
"""How often a server may ask for the same call again without a question to the user."""
PAUSE_SECONDS = 0.1


async def call_tool(
    connection: Connection, name: str, headers: Mapping[Path, str], arguments: Mapping[str, Any], context: ToolContext
) -> Any:
    """Call the tool `name`; this is the handler of its ``rxllm.Tool``.

    Raises ``ToolError("handler_raised")``, whose message the model reads.
    """
    try:
        questions = Questions.of(context)
        if questions.is_open:
            return questions.ask()
        call = _Call(connection, context, questions)
        return await call.run({"name": name, "arguments": dict(arguments)}, mirrored(headers, arguments))
    except ToolError:
        raise
    except LLMError as error:
        raise call_error(context, f"the MCP tool {name[:80]!r} failed: {error.message}") from error


def call_error(context: ToolContext, message: str) -> ToolError:
    call = context.tool_call
    return ToolError("handler_raised", message, tool_name=call.name, tool_call_id=call.id)


class _Call:
    def __init__(self, connection: Connection, context: ToolContext, questions: Questions) -> None:
        self._connection, self._context, self._questions = connection, context, questions

    async def run(self, params: Json, headers: dict[str, str]) -> Any:
        for _ in range(MAX_ROUNDS):
            answered = {**params, **self._questions.params()}
            try:
                result = await self._connection.request("tools/call", answered, self._receive, headers)
            except NeedsUserError:
                return self._questions.ask()
            if result.get("resultType") != "input_required":
                return self._result(result)
            self._questions = Questions.required(result)
            if self._questions.is_open:
                return self._questions.ask()
            await asyncio.sleep(PAUSE_SECONDS)  # the server only wants to be called again
        message = f"it asks to be called more than {MAX_ROUNDS} times"
        raise AdapterError("malformed_response", message, provider=PROVIDER)

    async def _receive(self, message: Json) -> None:
        params = object_of(message.get("params"))
        if message.get("method") == "notifications/progress":
            data = {name: params[name] for name in ("progress", "total", "message") if name in params}
            self._context.progress(data)
        elif message.get("method") == "elicitation/create":
            response = self._questions.response_to(params)
            if response is None:
                raise NeedsUserError
            answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": response}
            await self._connection.tell(await self._connection.peer(), answer)

    def _result(self, result: Json) -> Any:
        content = result.get("content")
        blocks = [object_of(block) for block in cast(list[Any], content)] if isinstance(content, list) else []
        text = "\n".join(filter(None, map(self._text, blocks)))
        if result.get("isError"):
            raise call_error(self._context, text or "the tool failed and did not say why")
        structured = result.get("structuredContent")
        has_more = any(block.get("type") != "text" for block in blocks)
        return text if structured is None or has_more else structured

    def _text(self, block: Json) -> str:
        """Return what the model reads of a block of content; pictures and files are reported as progress."""
        match block:
            case {"type": "text", "text": str(text)}:
                return text
            case {"type": "image" | "audio", "data": str(data), "mimeType": str(kind)}:
                return self._reported(data, kind)
            case {"type": "resource", "resource": {"text": str(text), **named}}:
                return f"{named.get('uri', '')}:\n{text}"
            case {"type": "resource", "resource": {"blob": str(data), **named}}:
                return self._reported(data, str(named.get("mimeType") or "application/octet-stream"))
            case {"type": "resource_link", "uri": str(uri)}:
                named = (block.get(name) for name in ("name", "description"))
                return ": ".join((uri, *(text for text in named if isinstance(text, str) and text)))
            case _:
                return ""

    def _reported(self, data: str, kind: str) -> str:
        try:
            binary = base64.b64decode(data, validate=True)
        except ValueError as error:
            message = f"it sent {kind[:80]} that is not base64"
            raise AdapterError("malformed_response", message, provider=PROVIDER) from error
        is_image = kind.startswith("image/")
        file = {"mime_type": kind, "data": binary}
        self._context.progress(ImagePart(Image.from_binary(binary, kind)) if is_image else FilePart(file))
        return f"[{kind[:80]}, {len(binary)} bytes]"
