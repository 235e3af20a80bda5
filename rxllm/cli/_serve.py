"""``serve``: models as an OpenAI-compatible server, until Ctrl-C."""

from __future__ import annotations

import os
import socket
import sys
from argparse import Namespace
from contextlib import suppress
from importlib import import_module
from typing import Any

import rxllm
from rxllm import EngineError
from rxllm.adapters import HTTPAdapter
from rxllm.values import Call

_HERE = ("127.0.0.1", "::1", "localhost")

LEAVING = 3
"""How many seconds the answers that are being given may go on after Ctrl-C."""


def run(options: Namespace) -> int:
    """Serve the models under their own names. Anyone but this machine needs a key."""
    key = os.environ.get(options.key) if options.key else None
    if options.key and not key:
        return _wrong(f"the variable {options.key} holds no key: set it, or leave --key out")
    if key is None and options.host not in _HERE:
        remedy = "name the variable that has it: --key RXLLM_SERVE_KEY"
        return _wrong(f"--host {options.host} lets other machines in, which needs a key; {remedy}")
    level = "debug" if options.debug else "critical"  # it calls an answer that Ctrl-C ends an error of the app
    models = options.model or [options.default_model]
    for name in models:
        _check_key(name)
    server = _server(rxllm.web.openai_app({name: name for name in models}, key=key), level)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listening = socket.create_server((options.host, options.port), family=family)
    except (OSError, OverflowError) as error:  # a port above 65535
        where = f"--host {options.host} --port {options.port}"
        return _wrong(f"cannot listen on {where}: {error}; --port 0 takes a free one")
    with listening:
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(f"http://{host}:{listening.getsockname()[1]}/v1 (Ctrl-C stops)", flush=True)
        with suppress(KeyboardInterrupt):  # uvicorn raises it once it has stopped
            server.run(sockets=[listening])
    return 0


def _check_key(name: str) -> None:
    """Raise ``EngineError("missing_key")`` now, and not for each request, if the model's provider needs a key."""
    adapter = rxllm.Engine.from_model(name).adapter
    if isinstance(adapter, HTTPAdapter):
        adapter.key(Call())


def _server(app: Any, level: str) -> Any:
    try:
        uvicorn = import_module("uvicorn")
    except ImportError:
        message = 'serve needs uvicorn, which is not installed; write pip install "rxllm[web]"'
        raise EngineError("missing_dependency", message) from None
    settings = {"lifespan": "on", "ws": "none", "timeout_graceful_shutdown": LEAVING}
    return uvicorn.Server(uvicorn.Config(app, log_config=None, log_level=level, **settings))


def _wrong(message: str) -> int:
    print(f"rxllm: {message}", file=sys.stderr)
    return 2
