"""llama.cpp's own HTTP server, inside this process: one per model, started at the first use, ended at exit."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rxllm.adapters.local.weights import report
from rxllm.values import EngineError

SLOTS = 4
"""How many answers are generated at once. They share `n_ctx`, and further calls wait."""

SLOW_SECONDS = 1.0


@dataclass(frozen=True)
class Server:
    """A running server. `knows_tools`: whether the model's chat template has tools."""

    url: str
    knows_tools: bool


_log = logging.getLogger("rxllm")

_servers: dict[tuple[Path, int], Future[Server]] = {}
_running: list[Any] = []  # llama.cpp's servers end when their last reference goes: the only one is here
_guard = threading.Lock()


def serve(path: Path, n_ctx: int) -> Server:
    """Return the server of the GGUF file `path`. Block while it loads; concurrent callers get the same server.

    Raise ``EngineError``: ``missing_dependency`` without xllamacpp, ``invalid_engine`` for a file that does not load.
    """
    key = (path, n_ctx)
    with _guard:
        is_first = key not in _servers
        future = _servers.setdefault(key, Future[Server]())
    if is_first:
        try:
            future.set_result(_start(path, n_ctx))
        except BaseException as error:
            with _guard:
                del _servers[key]
            future.set_exception(error)
    return future.result()


def _start(path: Path, n_ctx: int) -> Server:
    llama = bindings()
    # Not in a notebook: whether a load is slow depends on the machine, and stderr is a red box that stays in the file.
    slow = threading.Timer(SLOW_SECONDS, report, (f"loading {path.name} ...",), {"notebook": False})
    slow.daemon = True
    slow.start()
    began = time.perf_counter()
    try:
        running = llama.Server(_params(llama, path, n_ctx))
        _running.append(running)
        server = Server(running.listening_address, _knows_tools(running.listening_address))
    except RuntimeError as error:
        raise EngineError("invalid_engine", f"{path} does not load: {error}", provider="local") from error
    finally:
        slow.cancel()
    _log.info("loaded %s in %.1f s", path.name, time.perf_counter() - began)
    return server


def bindings() -> Any:
    """Return the module xllamacpp. Raise ``EngineError("missing_dependency")`` without it."""
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        message = "local models need xllamacpp: pip install 'rxllm[local]'"
        raise EngineError("missing_dependency", message, provider="local") from error


def _params(llama: Any, path: Path, n_ctx: int) -> Any:
    params = llama.CommonParams()
    params.model.path = str(path)
    params.n_ctx = n_ctx
    params.n_parallel = SLOTS
    params.port = 0
    params.verbosity = -1
    params.use_jinja = True
    params.ui = False
    params.model_alias = {path.stem}  # otherwise the responses name the whole path
    # Threads wait for each other by spinning: with one for each CPU, any other work slows an answer many times over.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 1) // 2)
    params.cache_ram_mib = 0  # the default keeps prompts of ended calls, in up to 8 GiB
    return params


def _knows_tools(url: str) -> bool:
    import httpx

    with httpx.Client(trust_env=False) as client:  # no proxy for this machine
        properties: Any = client.get(f"{url}/props").json()
    return bool(properties["chat_template_caps"]["supports_tools"])


@atexit.register
def _end() -> None:
    # Before modules are torn down: while there is an interpreter, the servers' threads end at once.
    _servers.clear()
    _running.clear()
