"""One call of a server's tool: its progress, its result, and what it asks the user."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Mapping
from typing import Any, cast

from rxllm import AdapterError, LLMError, ToolContext, ToolError
from rxllm.mcp._connection import Connection
from rxllm.mcp._parameter_headers import Path, mirrored
from rxllm.mcp._protocol import Json, malformed, object_of
from rxllm.mcp._questions import NeedsUserError, Questions
from rxllm.values import FilePart, Image, ImagePart

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
        questions, known = Questions.of(context), Questions()
        for attempt in range(MAX_ROUNDS):
            if questions.is_open:
                return questions.ask()
            await asyncio.sleep(PAUSE_SECONDS if attempt else 0)
            params = {"name": name, "arguments": dict(arguments), **questions.params()}
            call = _Call(context, questions)
            try:
                result = await connection.request("tools/call", params, mirrored(headers, arguments), call.receive)
            except NeedsUserError:
                continue
            except AdapterError as error:
                if not questions.is_forgotten(error):
                    raise
                known, questions = questions, Questions()
                continue
            if result.get("resultType") != "input_required":
                return call.output(result)
            questions = Questions.required(result, known)
            known = Questions()
        raise malformed(f"it asks to be called more than {MAX_ROUNDS} times")
    except ToolError:
        raise
    except LLMError as error:
        raise _error(context, f"the MCP tool {name[:80]!r} failed: {error.message}") from error


def _error(context: ToolContext, message: str) -> ToolError:
    call = context.tool_call
    return ToolError("handler_raised", message, tool_name=call.name, tool_call_id=call.id)


class _Call:
    """One request for a tool call: what comes while it runs, and what its result says."""

    def __init__(self, context: ToolContext, questions: Questions) -> None:
        self._context, self._questions = context, questions
        self._numbers = itertools.count()

    def receive(self, message: Json) -> Json | None:
        params = object_of(message.get("params"))
        match message["method"]:
            case "notifications/progress":
                data = {name: params[name] for name in ("progress", "total", "message") if name in params}
                self._context.progress(data)
            case "elicitation/create":
                return self._questions.response_to(next(self._numbers), params)
            case _:
                pass
        return None

    def output(self, result: Json) -> Any:
        content = result.get("content")
        blocks = [object_of(block) for block in cast(list[Any], content)] if isinstance(content, list) else []
        text = "\n".join(filter(None, map(self._text, blocks)))
        if result.get("isError"):
            raise _error(self._context, text or "the tool failed and did not say why")
        structured = result.get("structuredContent")
        return text if text or structured is None else structured

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
            raise malformed(f"it sent {kind[:80]} that is not base64") from error
        is_image = kind.startswith("image/")
        file = {"mime_type": kind, "data": binary}
        self._context.progress(ImagePart(Image.from_binary(binary, kind)) if is_image else FilePart(file))
        return f"[{kind[:80]}, {len(binary)} bytes]"
