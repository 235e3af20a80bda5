"""The clients in `judges`, which are npm packages. One Node process runs all of them, one after another."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests import tiers
from tests.judges import absent, node
from tests.programs import SECONDS

JUDGES = Path(__file__).parent / "judges"
MODULES = Path(__file__).parents[1] / "node_modules"

PACKAGES = {
    "ag_ui": "@ag-ui/client",
    "ag_ui_server": "@copilotkit/aimock",
    "chat": "ai",
    "openai": "openai",
    "ui": "ai",
    "ui_chat": "ai",
    "ui_react": "@ai-sdk/react",
}

_lock = threading.Lock()
_running: list[subprocess.Popen[str]] = []


def require(client: str) -> None:
    """Skip the test if the package of a client is not installed."""
    if not (MODULES / PACKAGES[client]).is_dir():
        absent(PACKAGES[client], "npm ci --prefix tests")


def run(client: str, input: Any = None) -> Any:
    """Return the output of ``judges/client.mjs`` for `input`."""
    tiers.needs("judges")
    require(client)
    with _lock:
        process = _process()
        assert process.stdin is not None
        assert process.stdout is not None
        in_vain = threading.Timer(SECONDS, process.kill)
        in_vain.start()
        try:
            process.stdin.write(json.dumps({"client": client, "input": input}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BaseException:  # the next reader would get the answer to this input
            _end()
            raise
        finally:
            in_vain.cancel()
        if not line:
            _end()
            raise AssertionError(f"the client {client} has no answer after {SECONDS:g} s, or has ended Node")
    answer = json.loads(line)
    assert "fault" not in answer, answer["fault"]
    return answer["output"]


def end() -> None:
    """End the Node process, if there is one."""
    with _lock:
        _end()


def _process() -> subprocess.Popen[str]:
    if not _running:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
        _running.append(subprocess.Popen([node(), str(JUDGES / "main.mjs")], **pipes))
    return _running[0]


def _end() -> None:
    while _running:
        with _running.pop() as process:
            process.kill()
