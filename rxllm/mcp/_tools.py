"""`tools` and `watch`, which list a server's tools as ``rxllm.Tool``s."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from rxllm import Stream, Tool, from_async_iter, to_async_iter
from rxllm.mcp._connection import MODERN, PROVIDER, Connection, Json, malformed, object_of
from rxllm.mcp._http import HTTP, parameter_headers
from rxllm.mcp._stdio import Stdio
from rxllm.mcp._tool_calls import call_tool
from rxllm.values.argument_checks import check, check_instance, explains_call

Server = Connection | str | Sequence[str]
"""A connection, a URL, or a command as a list."""

MAX_PAGES = 100
MAX_TOOLS = 1_000
MAX_NAMES = 10_000
"""The maximum number of tools that a connection remembers."""
DESCRIPTION = 4_000
"""The maximum length of a description, in characters. Longer descriptions are cut off."""

_CHANGED = "notifications/tools/list_changed"
_BEGUN = "notifications/subscriptions/acknowledged"

log = logging.getLogger("rxllm")


@explains_call("rxllm.mcp.tools(server); to set more options for a URL, pass rxllm.mcp.HTTP(url, timeout=30)")
def tools(
    server: Server, *, headers: Mapping[str, str] | None = None, prefix: str = "", allow_changes: bool = False
) -> Stream[tuple[Tool, ...]]:
    """List the tools of `server`, for ``tools=[...]`` or ``Engine.with_tools``.

    >>> search = tools("http://127.0.0.1:8000/mcp", headers={"authorization": "Bearer ..."})    # then .run() or await
    >>> files = tools(["npx", "-y", "@modelcontextprotocol/server-filesystem", "."], prefix="files_")

    Each subscription lists the tools again. `headers` are allowed only with a URL, and are sent with every request.
    `prefix` is added to the start of each tool's name. Characters that providers do not allow become "_".
    ``metadata["mcp"]`` holds a tool's original name and annotations.

    If `server` is a command, its process ends after the last tool is garbage-collected. To end the process or the
    connection earlier, pass a `Stdio` or `HTTP` object, and close that object.

    A tool that has changed since its first listing is left out with a warning, because you have not reviewed the
    change. Pass `allow_changes=True` to accept changes.

    Raises ``ValidationError("invalid_option")`` for invalid arguments. If the server fails, the stream ends with an
    ``AdapterError`` or ``StreamError``.
    """
    connection = _connect(server, headers, prefix)

    async def listing() -> AsyncIterator[tuple[Tool, ...]]:
        try:
            yield await _list_tools(connection, prefix, allow_changes)
        except BaseException:
            if connection is not server:
                await connection.aclose()
            raise

    return from_async_iter(listing)


def watch(
    server: Server, *, headers: Mapping[str, str] | None = None, prefix: str = "", allow_changes: bool = False
) -> Stream[tuple[Tool, ...]]:
    """List the tools of `server` now, and again after each change.

    ::

        server              --changed-----changed--|
        watch()     tools-----tools---------tools--|

    The arguments are the same as for `tools`. The stream completes when the server ends it, and fails if the connection
    is lost. ``.retry()`` then subscribes again, without a delay.
    """
    connection = _connect(server, headers, prefix)

    async def listings() -> AsyncIterator[tuple[Tool, ...]]:
        version = await connection.version()
        async with to_async_iter(connection.changes(version)) as changes:
            if version != MODERN:
                yield await _list_tools(connection, prefix, allow_changes)
            async for change in changes:
                if change.get("method") in (_CHANGED, _BEGUN):
                    yield await _list_tools(connection, prefix, allow_changes)

    return from_async_iter(listings)


def _connect(server: Any, headers: Mapping[str, str] | None, prefix: str) -> Connection:
    check_instance("prefix", prefix, str, "a string")
    check("headers", headers, headers is None or isinstance(server, str), "omitted unless the server is a URL")
    if isinstance(server, Connection):
        return server
    if isinstance(server, str):
        remedy = 'a URL that begins with http:// or https://, or a command as a list, such as ["python", "server.py"]'
        check("server", server, server.lower().startswith(("http://", "https://")), remedy)
        return HTTP(server, headers=headers)
    remedy = "a URL, a command as a list of strings, an mcp.HTTP or an mcp.Stdio"
    check("server", server, isinstance(server, list | tuple) and bool(cast(Any, server)), remedy)
    return Stdio(*cast(list[str], server))


async def _list_tools(connection: Connection, prefix: str, allow_changes: bool) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    fault = ""
    async for entry in _entries(connection):
        try:
            tool = _tool(connection, entry, prefix)
        except ValueError as error:
            fault = str(error)
            log.warning("the MCP tool %r is omitted: %s", str(object_of(entry).get("name"))[:80], fault)
        else:
            name = _unique_name(tool.name, tools)
            tools[name] = replace(tool, name=name)
    if fault and not tools:
        raise malformed(f"the MCP server listed no usable tool: {fault}")
    return tuple(tool for tool in tools.values() if _is_listed(connection.definitions, tool, allow_changes))


def _is_listed(known: dict[str, str], tool: Tool, allow_changes: bool) -> bool:
    definition = json.dumps([tool.description, tool.schema, tool.metadata], sort_keys=True)
    digest = hashlib.sha256(definition.encode()).hexdigest()
    if known.get(tool.name, digest) != digest and not allow_changes:
        remedy = "review it, then list the tools with allow_changes=True"
        log.warning("the MCP tool %r is omitted: its server has changed it; %s", tool.name, remedy)
        return False
    known[tool.name] = digest
    if len(known) > MAX_NAMES:
        raise malformed(f"the MCP server has listed more than {MAX_NAMES} tools")
    return True


async def _entries(connection: Connection) -> AsyncIterator[Any]:
    params: Json = {}
    cursors: set[int] = set()  # hashes, because a cursor may be long
    entries: list[Any] = []
    count = 0
    while len(cursors) < MAX_PAGES:
        page = await connection.request("tools/list", params)
        if not isinstance(page.get("tools"), list):
            raise malformed("the MCP server did not send a list of tools")
        earlier, entries = entries, cast(list[Any], page["tools"])
        is_repeated = bool(entries) and entries == earlier
        for entry in () if is_repeated else entries:
            count += 1
            if count > MAX_TOOLS:
                raise malformed(f"the MCP server has more than {MAX_TOOLS} tools")
            yield entry
        cursor = page.get("nextCursor")
        if cursor is None:
            return
        if is_repeated or hash(str(cursor)) in cursors:
            log.warning(
                "the MCP server repeats itself at the cursor %r; its list of tools ends there", str(cursor)[:80]
            )
            return
        cursors.add(hash(str(cursor)))
        params = {"cursor": cursor}
    raise malformed(f"the MCP server has more than {MAX_PAGES} pages of tools")


def _tool(connection: Connection, entry: Any, prefix: str) -> Tool:
    """Return the tool that `entry` describes. Raises ``ValueError`` if rxllm cannot call it."""
    fields = object_of(entry)
    name, schema = fields.get("name"), fields.get("inputSchema")
    if not isinstance(name, str) or not isinstance(schema, dict):
        raise ValueError(f"its entry has no name or no inputSchema: {str(entry)[:80]}")
    schema = cast(Json, schema)
    headers = parameter_headers(schema)
    description = fields.get("description")
    own = {key: fields[key] for key in ("name", "title", "annotations", "outputSchema") if key in fields}
    return Tool(
        _legal_name(prefix + name),
        description[:DESCRIPTION] if isinstance(description, str) else "",
        schema,
        _Handler(call_tool, connection, name, headers),
        metadata={PROVIDER: own},
    )


class _Handler(partial[Any]):
    """A tool's handler. Its repr appears in the error for two tools that have the same name."""

    checks_arguments = True

    def __repr__(self) -> str:
        return f"mcp.tools({self.args[0]!r}, prefix=...)"


def _legal_name(name: str) -> str:
    """Return `name` in a form that all providers accept.

    Such a name has up to 64 characters: letters, digits, "_" and "-". The first character is a letter or "_".
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]
    return name if re.match(r"[A-Za-z_]", name) else f"_{name}"[:64]


def _unique_name(name: str, known: Mapping[str, Any]) -> str:
    number, unique = 1, name
    while unique in known:
        number += 1
        unique = f"{name[: 63 - len(str(number))]}_{number}"
    return unique
