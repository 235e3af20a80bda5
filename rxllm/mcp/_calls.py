"""One call of a server's tool: its progress, its result, and what it asks the user."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from rxllm import AdapterError, FilePart, Halt, Image, ImagePart, LLMError, ToolContext, ToolError, ValidationError
from rxllm.mcp._connection import Connection, Left
from rxllm.mcp._parameter_headers import Path, mirrored
from rxllm.mcp._protocol import PROVIDER, Json
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
        return await _Call(connection, name, headers, arguments, context, questions).run()
    except ToolError:
        raise
    except LLMError as error:
        text = f"the MCP tool {name[:80]!r} failed: {error.message}"
        raise ToolError("handler_raised", text, tool_name=name) from error


class _Call:
    def __init__(
        self,
        connection: Connection,
        name: str,
        headers: Mapping[Path, str],
        arguments: Mapping[str, Any],
        context: ToolContext,
        questions: Questions,
    ) -> None:
        self._connection = connection
        self._params = {"name": name, "arguments": dict(arguments)}
        self._headers = mirrored(headers, arguments)
        self._progress = context.progress
        self._questions = questions

    async def run(self) -> Any:
        answered = self._questions.params()
        for _ in range(MAX_ROUNDS):
            try:
                result = await self._connection.request(
                    "tools/call", {**self._params, **answered}, self._receive, self._headers
                )
            except Left:
                return self._questions.ask()
            if result.get("resultType") != "input_required":
                return self._result(result)
            self._questions = Questions.required(result)
            if self._questions.is_open:
                return self._questions.ask()
            answered = self._questions.params()  # the server only wants to be called again
            await asyncio.sleep(PAUSE_SECONDS)
        raise AdapterError("malformed_response", f"it asks to be called more than {MAX_ROUNDS} times", provider=PROVIDER)

    async def _receive(self, message: Json) -> None:
        params = message.get("params")
        if not isinstance(params, dict):
            return
        params = cast(Json, params)
        if message["method"] == "notifications/progress":
            self._progress({name: params[name] for name in ("progress", "total", "message") if name in params})
        elif message["method"] == "elicitation/create":
            response = self._questions.response_to(message)
            if response is None:
                raise Left
            peer = await self._connection.peer()
            await self._connection.tell(peer, {"jsonrpc": "2.0", "id": message["id"], "result": response})

    def _result(self, result: Json) -> Any:
        blocks = [block for block in _list(result.get("content")) if isinstance(block, dict)]
        texts = [self._text(cast(Json, block)) for block in blocks]
        text = "\n".join(text for text in texts if text)
        if result.get("isError"):
            raise ToolError("handler_raised", text or "the tool failed and did not say why")
        structured = result.get("structuredContent")
        only_text = all(cast(Json, block).get("type") == "text" for block in blocks)
        return structured if structured is not None and only_text else text

    def _text(self, block: Json) -> str:
        """Return what the model reads of a block of content; files and pictures are reported as progress."""
        match block:
            case {"type": "text", "text": str(text)}:
                return text
            case {"type": "image", "data": str(data), "mimeType": str(kind)}:
                return self._reported(ImagePart, data, kind)
            case {"type": "audio", "data": str(data), "mimeType": str(kind)}:
                return self._reported(FilePart, data, kind)
            case {"type": "resource", "resource": {"text": str(text), **named}}:
                return f"{named.get('uri', '')}:\n{text}"
            case {"type": "resource", "resource": {"blob": str(data), **named}}:
                return self._reported(FilePart, data, str(named.get("mimeType") or "application/octet-stream"))
            case {"type": "resource_link", "uri": str(uri)}:
                named = (block.get(name) for name in ("name", "description"))
                return ": ".join(filter(None, (uri, *(part for part in named if isinstance(part, str)))))
            case _:
                return ""

    def _reported(self, part: Any, data: str, kind: str) -> str:
        try:
            image = Image.from_base64(data, kind)
            binary = image.to_binary()
        except (ValidationError, ValueError) as error:
            raise AdapterError("malformed_response", f"it sent {kind[:80]} that is not base64", provider=PROVIDER) from error
        self._progress(ImagePart(image) if part is ImagePart else FilePart({"mime_type": kind, "data": binary}))
        return f"[{kind}, {len(binary)} bytes]"


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []
