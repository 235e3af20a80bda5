"""The command line: arguments, exit codes, and the commands ``providers`` and ``new-plugin``."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

import rxllm
from rxllm import Engine, LLMError, __version__, json_schema, keys
from rxllm.cli import _conversation, _serve
from rxllm.cli._conversation import plain, report

TEMPLATE = Path(__file__).parent / "plugin"
"""The folder that contains the example plugin. Built distributions of rxllm include a copy of this folder."""

_FILES = ("*.toml", "*.md", "src/*/*.py", "src/*/py.typed", "tests/*.py")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    The code is 0 for success, 1 for an error, 2 for incorrect usage, and 130 for Ctrl-C.
    """
    options = _parser().parse_args(arguments)
    if options.debug:
        logging.basicConfig()
        logging.getLogger("rxllm").setLevel(logging.DEBUG)
    _open_streams()
    try:
        return options.run(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout again at exit
        return 1
    except Exception as error:
        if options.debug:
            raise
        report(error)
        return 1


def _open_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # a shell or a service manager may have closed the stream
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # the stream's encoding may not support all characters


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rxllm", description="Use language models from the terminal.")
    parser.add_argument("--version", action="version", version=f"rxllm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=help)
        added.set_defaults(run=run)
        added.add_argument("--debug", action="store_true", help="show tracebacks and logs")
        return added

    ask = command("ask", _conversation.ask, "ask one question; piped text is added to it")
    ask.add_argument("prompt", nargs="*", help="the question")
    model = os.environ.get("RXLLM_MODEL") or "local"
    for added in (ask, command("chat", _conversation.chat, "chat with a model; Ctrl-C stops an answer, Ctrl-D quits")):
        added.add_argument("-m", "--model", default=model, help="provider:name; the default is $RXLLM_MODEL or local")
        added.add_argument("-s", "--system", metavar="TEXT", help="the system prompt")
        temperature = "from 0 to 2; the default depends on the model"
        added.add_argument("-t", "--temperature", type=float, metavar="NUMBER", help=temperature)
        added.add_argument("-f", "--file", action="append", default=[], help="attach a file or a URL; can be repeated")
        tools = "let the model use tools, such as app:tools; you are asked about calls that need approval"
        added.add_argument("--tools", metavar="MODULE:NAME", type=_tools, default=(), help=tools)
        added.add_argument("--json", metavar="SCHEMA", type=_schema, help="answer in JSON that matches the schema file")
        added.add_argument("--events", action="store_true", help="print each event as a line of JSON")
    serve = command("serve", _serve.serve, "serve models to programs in any language, with an OpenAI-compatible API")
    serve.add_argument("-m", "--model", action="append", help="provider:name, as in the ask command; can be repeated")
    serve.add_argument("--host", default="127.0.0.1", help="the address; by default only this machine can connect")
    serve.add_argument("--port", type=int, default=8000, help="the port; the default is 8000, and 0 chooses a free one")
    serve.add_argument(
        "--key", metavar="VARIABLE", help="the environment variable that holds the key; clients must send this key"
    )
    serve.set_defaults(default_model=model)
    worker = command("worker", _serve.work, "continue durable runs that no process is working on")
    worker.add_argument("runs", metavar="MODULE:RUNS", help="an rxllm.durable.Runs, or a function that returns one")
    worker.add_argument(
        "--every",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="seconds between checks for waiting runs; the default is 1",
    )
    worker.add_argument("--most", type=int, default=100, help="maximum number of runs at once; the default is 100")
    grace = "seconds to let runs finish after SIGTERM or Ctrl-C; the default is 30"
    worker.add_argument("--grace", type=float, default=30.0, metavar="SECONDS", help=grace)
    command("providers", list_providers, "list the providers and show which of them have a key")
    plugin = command("new-plugin", write_plugin, "write a package with an adapter, an operator and their tests")
    plugin.add_argument(
        "name", type=provider_name, help="the provider's name; if it is acme, the package is called rxllm-acme"
    )
    return parser


def _schema(path: str) -> dict[str, Any]:
    try:
        schema: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(schema, dict):
            raise ValueError("a schema must be an object")
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(f"{path} must be a file with a JSON schema: {error}") from error
    return json_schema("answer", cast(dict[str, Any], schema))


def _tools(place: str) -> Sequence[Any]:
    sys.path.insert(0, os.getcwd())
    try:
        found = resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentTypeError(
            f"{place} must be module:name, where name is a tool or a list of tools: {error}"
        ) from error
    return cast(Sequence[Any], found) if isinstance(found, Sequence) else [found]


def list_providers(options: Namespace) -> int:
    rows = [("provider", "key", "is", "default address"), *map(_row, rxllm.adapters.providers())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(name: str) -> tuple[str, str, str, str]:
    try:
        adapter: Any = Engine(name if name == "local" else f"{name}:model").adapter
    except LLMError as error:  # the plugin cannot be loaded
        return name, "-", "-", plain(error.message)[:100]
    provider, needs_key = getattr(adapter, "provider", name), getattr(adapter, "needs_key", False)
    variable = getattr(adapter, "key_variable", None)
    state = "set" if keys.find(provider, None, None, variable) else "missing" if needs_key else "not needed"
    variable = variable or (keys.variable_for(provider) if needs_key else "-")
    return name, variable, state, getattr(adapter, "default_base_url", "-")


def write_plugin(options: Namespace) -> int:
    """Write a new plugin to the folder ``rxllm-NAME``. Raises ``FileExistsError`` if the folder already exists."""
    name, folder = options.name, Path(f"rxllm-{options.name}")
    sources = _sources()
    if not sources:
        raise FileNotFoundError(f"{TEMPLATE} is not a folder: check out rxllm with symlinks, or install its wheel")
    folder.mkdir()
    for source in sources:
        target = folder / renamed(source.relative_to(TEMPLATE).as_posix(), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(renamed(source.read_text(encoding="utf-8"), name), encoding="utf-8", newline="\n")
    print(f'{folder} has the adapter for "{name}:model", the operator ops.plugins.citations() and their tests. Next:')
    print(f'    cd {folder} && pip install -e ".[test]" && pytest')
    return 0


def _sources() -> list[Path]:
    return [path for pattern in _FILES for path in TEMPLATE.glob(pattern)]


def provider_name(name: str) -> str:
    """Return `name` if it is valid and not taken; otherwise, raise ``ArgumentTypeError``."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ArgumentTypeError(
            f"{name!r} must begin with a letter and contain only a-z, 0-9 and single hyphens, as in acme-ai"
        )
    if name in rxllm.adapters.providers():
        raise ArgumentTypeError(f"there is already a provider named {name}; choose another name")
    adapter = renamed("Cohere", name)
    words = {word for source in _sources() for word in re.findall(r"\w+", source.read_text(encoding="utf-8"))}
    if adapter.startswith("Test") or adapter in words - {
        "Cohere"
    }:  # pytest would collect it, or the example already uses it
        raise ArgumentTypeError(
            f"{name} gives the class name {adapter}, which is taken; choose another name, such as the-{name}"
        )
    return name


def renamed(text: str, name: str) -> str:
    """Return `text` from the example plugin, rewritten for the provider `name`.

    >>> renamed("from rxllm_cohere import Cohere  # https://docs.cohere.com, https://api.cohere.com", "acme-ai")
    'from rxllm_acme_ai import AcmeAi  # https://docs.cohere.com, https://api.acme-ai.example'

    Links to Cohere's API docs are left unchanged.
    """
    identifier = name.replace("-", "_")
    names = {
        "docs.cohere.com": "docs.cohere.com",
        "api.cohere.com": f"api.{name}.example",
        "CO_API_KEY": f"{identifier.upper()}_API_KEY",
        "_cohere": f"_{identifier}",
        "Cohere": identifier.title().replace("_", ""),
        "cohere": name,
    }
    return re.sub("|".join(map(re.escape, names)), lambda match: names[match[0]], text)
