"""``new-plugin``: write the example package, with an adapter and an operator, under another name."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from pathlib import Path

import rxllm

TEMPLATE = Path(__file__).parent / "plugin"
"""A link to ``examples/plugin`` in the repository, a folder with its files in an installed package."""

_FILES = ("*.toml", "*.md", "src/*/*.py", "src/*/py.typed", "tests/*.py")


def run(options: Namespace) -> int:
    """Write ``rxllm-NAME`` into the working directory. Raise ``FileExistsError`` if it is there already."""
    name, folder = options.name, Path(f"rxllm-{options.name}")
    sources = _sources()
    if not sources:
        raise FileNotFoundError(f"{TEMPLATE} is not a folder: check rxllm out with links, or install it from its wheel")
    folder.mkdir()
    for source in sources:
        target = folder / renamed(source.relative_to(TEMPLATE).as_posix(), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(renamed(source.read_text(encoding="utf-8"), name), encoding="utf-8", newline="\n")
    print(f'{folder}: the adapter of "{name}:model", the operator ops.plugins.citations() and their tests. Next:')
    print(f'    cd {folder} && pip install -e ".[test]" && pytest')
    return 0


def _sources() -> list[Path]:
    return [path for pattern in _FILES for path in TEMPLATE.glob(pattern)]


def checked(name: str) -> str:
    """Return `name` if a new provider can have it. Raise ``ArgumentTypeError``."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ArgumentTypeError(f"{name!r} must be small letters, digits and hyphens, such as acme or acme-ai")
    if name in rxllm.adapters.providers():
        raise ArgumentTypeError(f"there is a provider {name} already; choose another name")
    adapter = renamed("Cohere", name)
    words = {word for source in _sources() for word in re.findall(r"\w+", source.read_text(encoding="utf-8"))}
    if adapter.startswith("Test") or adapter in words - {"Cohere"}:  # pytest would collect it, or the name is in use
        raise ArgumentTypeError(
            f"{name} makes a class {adapter}, a name with another meaning; write for example the-{name}"
        )
    return name


def renamed(text: str, name: str) -> str:
    """Return `text` of the example with the provider `name`. Links to the documentation of Cohere's wire stay.

    >>> renamed("from rxllm_cohere import Cohere  # https://docs.cohere.com, https://api.cohere.com", "acme-ai")
    'from rxllm_acme_ai import AcmeAi  # https://docs.cohere.com, https://api.acme-ai.example'
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
