"""`Stdio`, a connection to a server over standard input and output.

All tools of a connection share one server process. They can be called from any loop or thread.

The server is stopped when the connection is closed, when the connection and its tools are garbage-collected, or when
this process exits. If this process is killed, `_GUARD` stops the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import signal
import subprocess
import threading
import uuid
import weakref
from collections import deque
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn, cast

import msgspec

from rxllm import AdapterError, LLMError, Stream, StreamError, from_async_iter, keys
from rxllm.mcp._connection import PROVIDER, Connection, Json, messages_in, object_of, own_id, response
from rxllm.values.argument_checks import check
from rxllm.wire import NDJSONDecoder

log = logging.getLogger("rxllm")

GRACE_SECONDS = 1.0
"""The number of seconds to wait for a server to exit before killing it."""
MAX_WAITING = 1_000
"""The maximum number of unread messages in an inbox. A full inbox accepts only responses and errors."""
MAX_UNREAD = 32 * 2**20
"""The maximum number of bytes that a server may leave unread in its standard input."""
STDERR_SHOWN = 2_000

_INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "SYSTEMROOT", "APPDATA", "TEMP")
_IS_POSIX = os.name == "posix"

_GUARD = """
read -r _ || sleep "$1"
kill -KILL -- "-$2"
for path in $(grep -ls "RXLLM_MCP_PROCESS=$3" /proc/[0-9]*/environ); do
  path=${path#/proc/}
  kill -KILL "${path%/environ}"
done
"""
"""A shell script that kills the server and its descendants.

The script does so when it reads a line of input. If its input ends because this Python process has ended, the script
waits for `GRACE_SECONDS` first.
"""

_of_parent: list[Process] = []
"""Server processes that belong to this process's parent. Garbage-collecting them would break their pipes."""


class Stdio(Connection):
    """A connection to a server process on this machine.

    The first call starts ``command *arguments``. If the server exits, the next call restarts it. The server inherits
    only `PATH`, `HOME` and similar variables, so it does not see any keys. To add variables, pass `env`. `timeout`, in
    seconds, limits how long the server may take to start or to answer a request. It does not apply to tool calls.
    ``version="2025-11-25"`` asks for that version, even if the server supports a later one.
    """

    def __init__(
        self,
        command: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        version: str | None = None,
    ) -> None:
        super().__init__(timeout, version)
        self._command = (command, *arguments)
        are_texts = command and all(isinstance(cast(Any, part), str) for part in self._command)
        check("command", self._command, bool(are_texts), 'strings, such as Stdio("npx", "server")')
        check("env", env, env is None or _are_texts(env), "a mapping of names to strings")
        self._env = {**{name: os.environ[name] for name in _INHERITED if name in os.environ}, **(env or {})}
        self._cwd = cwd
        self.secrets = tuple(keys.secrets_in(env))
        self._process: Process | None = None

    def send(self, version: str, message: Json, headers: Mapping[str, str]) -> Stream[Json]:
        return from_async_iter(lambda: self._exchange(message))

    def listen(self, version: str) -> Stream[Json]:
        return from_async_iter(lambda: self._exchange(None))

    def needs_cancel(self, version: str) -> bool:
        return self._process is not None and self._process.failure is None

    async def version(self) -> str:
        with self._guard:
            self._leave_to_parent()
            if self._process is None or self._process.failure is not None:
                self._process, self._version = Process(self._command, self._env, self._cwd, self.secrets), None
                self._process.finalizer = weakref.finalize(self, self._process.abandon)
        return await super().version()

    async def aclose(self) -> None:
        await super().aclose()
        with self._guard:
            self._leave_to_parent()
            process, self._process = self._process, None
        if process is not None:
            await process.aclose()

    def _leave_to_parent(self) -> None:
        if self._process is not None and self._process.owner != os.getpid():
            _of_parent.append(self._process)
            self._process = None

    async def _exchange(self, message: Json | None) -> AsyncIterator[Json]:
        process = self._process
        if process is None:
            raise AdapterError("provider_unavailable", f"{self!r} was closed", provider=PROVIDER)
        with process.sent(message) as inbox:
            while inbox is not None:
                yield await inbox.get()

    def __reduce__(self) -> NoReturn:
        raise pickle.PicklingError("a Stdio cannot be pickled; list its tools in the process that calls them")

    def __repr__(self) -> str:
        program, *arguments = self._command  # arguments that are not file names may be secrets
        files = [part for part in arguments if os.path.isfile(os.path.join(self._cwd or "", part))]
        return f"Stdio({', '.join(map(repr, (program, *files[:1])))})"


class Inbox:
    """Messages on their way from the server's thread to a loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[Json | LLMError] = deque()
        self._wake = asyncio.Event()

    def put(self, item: Json | LLMError) -> None:
        if len(self._items) < MAX_WAITING or isinstance(item, LLMError) or "method" not in item:
            self._items.append(item)
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._wake.set)

    async def get(self) -> Json:
        while not self._items:
            self._wake.clear()
            await self._wake.wait()
        item = self._items.popleft()
        if isinstance(item, LLMError):
            raise item
        return item


def _may_be_ours(id: Any, *, found: bool) -> bool:
    """Return whether a response with this `id` may be for a request. The request may be over already."""
    key = own_id(id)
    return type(key) in (int, float) or (isinstance(key, str) and found)


class Process(asyncio.SubprocessProtocol):
    """A server process, from its start to its exit.

    `failure` is set when the server becomes unusable.
    """

    def __init__(self, command: tuple[str, ...], env: Mapping[str, str], cwd: Any, secrets: Sequence[str]) -> None:
        self.owner = os.getpid()
        self.failure: LLMError | None = None
        self.finalizer: weakref.finalize[..., Any] | None = None
        self._command, self._cwd, self._secrets = command, cwd, secrets
        self._mark = uuid.uuid4().hex  # every process that the server starts inherits this mark
        self._env = {**env, "RXLLM_MCP_PROCESS": self._mark}
        self._lock = threading.Lock()
        self._inboxes: dict[Any, Inbox] = {}
        """The open inboxes. The key is a request's number, a subscription's id or, for a listener, the inbox itself."""
        self._framing = NDJSONDecoder()
        self._stderr = b""
        self._is_over = asyncio.Event()
        self._has_exited = asyncio.Event()
        started = Future[None]()
        self._thread = threading.Thread(target=self._serve, args=(started,), name="rxllm-mcp", daemon=True)
        self._thread.start()
        if started.exception() is not None:
            self._thread.join()
        started.result()

    @contextlib.contextmanager
    def sent(self, message: Json | None) -> Generator[Inbox | None]:
        """Send `message`, and yield the inbox that will receive its answer, or None if no answer is expected.

        If `message` is None, nothing is sent, and the inbox receives notifications.
        """
        inbox = Inbox() if message is None or {"id", "method"} <= message.keys() else None
        key = message["id"] if message is not None and inbox is not None else inbox
        line = b"" if message is None else _line(message)
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if inbox is not None:
                self._inboxes[key] = inbox
        try:
            self._on_loop(self._write, line)
            yield inbox
        finally:
            with self._lock:
                self._inboxes.pop(key, None)

    async def aclose(self) -> None:
        """Stop the server, and wait at most a few seconds for it to exit."""
        self._on_loop(self._fail, "was closed")
        await asyncio.to_thread(self._thread.join, 5 * GRACE_SECONDS)

    def abandon(self) -> None:
        """Kill the server immediately, without giving it time to exit."""
        if self._thread.is_alive():  # a forked child does not have this thread
            self._kill()
            self._on_loop(self._fail, "was abandoned")

    def _on_loop(self, function: Any, argument: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the server has ended
            self._loop.call_soon_threadsafe(function, argument)

    def _serve(self, started: Future[None]) -> None:
        try:
            asyncio.run(self._main(started))
        except Exception as error:
            if started.done():
                raise
            started.set_exception(self._error(f"cannot be started: {error}"))
        finally:
            self._fail("has ended")

    async def _main(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        options: Any = {"env": self._env, "cwd": self._cwd, "start_new_session": _IS_POSIX}
        await self._loop.subprocess_exec(lambda: self, *self._command, **pipes, **options)
        guard = await self._start_guard()
        started.set_result(None)
        try:
            await self._is_over.wait()
        finally:
            await self._end(guard)
            if self.finalizer is not None:
                self.finalizer.detach()

    async def _start_guard(self) -> asyncio.subprocess.Process | None:
        """Start `_GUARD`, or return None if there is no shell."""
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        arguments = (f"{GRACE_SECONDS:.0f}", str(self._transport.get_pid()), self._mark)
        with contextlib.suppress(OSError):
            if _IS_POSIX:
                command = ("/bin/sh", "-c", _GUARD, "rxllm-mcp", *arguments)
                return await asyncio.create_subprocess_exec(*command, **pipes, start_new_session=True, cwd="/")
        return None

    async def _end(self, guard: asyncio.subprocess.Process | None) -> None:
        self._stdin.abort() if self._stdin.get_write_buffer_size() else self._stdin.close()
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await self._has_exited.wait()
            self._kill()  # descendants may outlive the server
        with contextlib.suppress(TimeoutError):
            if guard is not None:
                await asyncio.wait_for(guard.communicate(b"\n"), GRACE_SECONDS)
        self._transport.close()
        await asyncio.sleep(0)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if _IS_POSIX:
                os.killpg(self._transport.get_pid(), signal.SIGKILL)
            else:
                self._transport.kill()

    def _write(self, line: bytes) -> None:
        if not self._stdin.is_closing():
            self._stdin.write(line)
        if self._stdin.get_write_buffer_size() > MAX_UNREAD:
            self._fail(f"has left more than {MAX_UNREAD} bytes of its input unread")

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.SubprocessTransport = transport
        self._stdin: asyncio.WriteTransport = transport.get_pipe_transport(0)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            self._stderr = (self._stderr + data)[-STDERR_SHOWN:]
            return
        try:
            frames = self._framing.feed(data)
        except StreamError as error:
            self._fail(f"wrote a message that is too long: {error.message}")
            return
        for frame in frames:
            with contextlib.suppress(StreamError, ValueError, RecursionError):  # some servers print other text as well
                for message in messages_in(msgspec.json.decode(frame)):
                    self._deliver(message)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            # Wait a little, because the process's exit code may still arrive.
            self._loop.call_later(0.1, self._fail, "has closed its output")

    def process_exited(self) -> None:
        self._has_exited.set()
        # Allow time to read the output that is still in the pipe. Do not wait for end-of-file, because a child process
        # of the server may keep the pipe open.
        code = self._transport.get_returncode()
        self._loop.call_later(0.05, self._fail, "has ended" if code is None else f"has ended with exit code {code}")

    def _deliver(self, message: Json) -> None:
        with self._lock:
            inboxes = self._receivers(message)
        if not inboxes and {"id", "method"} <= message.keys():
            self._write(_line(response(message, None)))
        if "method" not in message and not _may_be_ours(message.get("id"), found=bool(inboxes)):
            # Its request waits until it times out, which says nothing about the id.
            log.warning("the MCP server answers a request that nobody has sent: its id is %.80r", message.get("id"))
        for inbox in inboxes:
            inbox.put(message)

    def _receivers(self, message: Json) -> list[Inbox]:
        token = object_of(message.get("params")).get("progressToken")
        key = own_id(token if "method" in message else message.get("id"))
        if isinstance(key, str | int | float):  # a second response is dropped
            inbox = self._inboxes.get(key) if "method" in message else self._inboxes.pop(key, None)
            return [] if inbox is None else [inbox]
        calls = [inbox for key, inbox in self._inboxes.items() if isinstance(key, int)]
        # A request from the server does not name the tool call that it belongs to. Therefore, the request can be
        # delivered only if exactly one call is running.
        if "id" in message:
            return calls if len(calls) == 1 else []
        return [inbox for inbox in self._inboxes.values() if inbox not in calls]

    def _fail(self, why: str) -> None:
        with self._lock:
            if self.failure is not None:
                return
            self.failure = self._error(why)
            inboxes, self._inboxes = list(self._inboxes.values()), {}
        for inbox in inboxes:
            inbox.put(self.failure)
        self._is_over.set()

    def _error(self, why: str) -> AdapterError:
        stderr = self._stderr.decode(errors="replace").strip()
        text = f"the MCP server {self._command[0]!r} {why}" + (f"; it wrote: {stderr}" if stderr else "")
        return keys.redacted(AdapterError("provider_unavailable", text, provider=PROVIDER), self._secrets)


def _are_texts(env: Any) -> bool:
    return isinstance(env, Mapping) and all(
        isinstance(item, str) for item in (*cast(Json, env), *cast(Json, env).values())
    )


def _line(message: Json) -> bytes:
    return json.dumps(message).encode() + b"\n"
