"""The commands ``serve`` and ``worker``.

After the first signal, a worker gives its runs time to finish. When that time is up, or after a second signal, the
worker releases the runs that have not finished.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from argparse import Namespace
from contextlib import suppress
from importlib import import_module
from typing import Any

import rxllm
from rxllm import EngineError, RunError
from rxllm.adapters import HTTPAdapter
from rxllm.durable import Runs
from rxllm.values import Call

_HERE = ("127.0.0.1", "::1", "localhost")

LEAVING = 3
"""The number of seconds to wait for unfinished answers after Ctrl-C."""

LOOK_SECONDS = 0.05
"""While a worker is stopping, it checks at this interval, in seconds, whether its runs have finished."""

WRONG = "write module:name, where name is the result of rxllm.durable.open_runs(...) or a function that returns it"


def serve(options: Namespace) -> int:
    """Serve models over HTTP under their own names. If other machines can connect, a key is required."""
    key = os.environ.get(options.key) if options.key else None
    if options.key and not key:
        return _wrong(f"the variable {options.key} holds no key: set it, or leave out --key")
    if key is None and options.host not in _HERE:
        remedy = "pass the name of the environment variable that holds the key, for example --key RXLLM_SERVE_KEY"
        return _wrong(f"--host {options.host} lets other machines connect, so a key is required; {remedy}")
    level = "debug" if options.debug else "critical"  # uvicorn reports cut-off answers as errors
    models = options.model or [options.default_model]
    for name in models:
        _check_key(name)
    server = _server(rxllm.web.openai_app({name: name for name in models}, key=key), level)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listening = socket.create_server((options.host, options.port), family=family)
    except (OSError, OverflowError) as error:  # OverflowError: the port is above 65535
        where = f"--host {options.host} --port {options.port}"
        return _wrong(f"cannot listen on {where}: {error}; --port 0 chooses a free port")
    with listening:
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(f"http://{host}:{listening.getsockname()[1]}/v1 (Ctrl-C stops)", flush=True)
        with suppress(KeyboardInterrupt):  # raised once uvicorn has stopped
            server.run(sockets=[listening])
    return 0


def _check_key(name: str) -> None:
    """Raise an error right away if there is no API key for the model's provider."""
    adapter = rxllm.Engine(name).adapter
    if isinstance(adapter, HTTPAdapter):
        adapter.key(Call())


def _server(app: Any, level: str) -> Any:
    try:
        uvicorn = import_module("uvicorn")
    except ImportError:
        message = 'serve needs uvicorn, which is not installed; run pip install "rxllm[web]"'
        raise EngineError("missing_dependency", message) from None
    settings = {"lifespan": "on", "ws": "none", "timeout_graceful_shutdown": LEAVING}
    return uvicorn.Server(uvicorn.Config(app, log_config=None, log_level=level, **settings))


def _wrong(message: str) -> int:
    print(f"rxllm: {message}", file=sys.stderr)
    return 2


def work(options: Namespace) -> int:
    """Recover and execute runs until a signal arrives, then release the unfinished runs."""
    sys.path.insert(0, os.getcwd())
    try:
        runs = _runs(options.runs)
    except LookupError as error:
        return _wrong(error.args[0])
    with suppress(KeyboardInterrupt):  # raised if the loop cannot handle signals
        asyncio.run(_work(runs, options.every, options.most, options.grace))
    return 0


async def _work(runs: Runs, every: float, most: int, grace: float) -> None:
    ending, at_once = asyncio.Event(), asyncio.Event()

    def end() -> None:
        (at_once if ending.is_set() else ending).set()

    with suppress(NotImplementedError):
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, end)
    print(f"{runs!r} (Ctrl-C stops)", flush=True)
    async with runs:
        while not ending.is_set():
            await _recover(runs, most - len(runs.produced))
            await _wait(ending, every)
        until = time.monotonic() + grace
        while runs.produced and not at_once.is_set() and time.monotonic() < until:
            await _wait(at_once, LOOK_SECONDS)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _recover(runs: Runs, room: int) -> None:
    try:
        for id in await runs.recover(room) if room > 0 else ():
            print(f"run {id}", flush=True)
    except RunError as error:
        if error.reason != "store_unavailable":
            raise
        print(f"rxllm: {error}", file=sys.stderr)


def _runs(place: str) -> Runs:
    module, _, name = place.partition(":")
    try:
        found: Any = import_module(module) if module and name else None
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise LookupError(f"there is no module {module!r} for {place!r}: {WRONG}") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found) and not isinstance(found, Runs):
        found = found()
    if not isinstance(found, Runs):
        raise LookupError(f"{place!r} is {found!r:.80}: {WRONG}")
    return found
