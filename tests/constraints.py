"""Renew the versions that the tests are run with: ``python -m tests.constraints``.

It resolves the newest ones for every Python and platform, runs the README's test command with them in a fresh virtual
environment, and writes them to ``constraints.txt`` if all tests pass. A release of another project changes nothing
until then.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "tests" / "constraints.txt"
EXTRAS = ("test", "browser", "docs")


def resolve(target: Path) -> None:
    extras = [f"--extra={extra}" for extra in EXTRAS]
    options = ["--universal", "--python-version=3.11", "--no-annotate", "--no-header", "--quiet"]
    run("uv", "pip", "compile", "pyproject.toml", *extras, *options, "--output-file", str(target))


def run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        newest = folder / "constraints.txt"
        resolve(newest)
        python = folder / "env" / "bin" / "python"
        run(sys.executable, "-m", "venv", str(folder / "env"))
        run(str(python), "-m", "pip", "install", "--quiet", "-e", ".[test]", "-c", str(newest))
        run(str(python), "-m", "pytest")
        CONSTRAINTS.write_text(newest.read_text())


if __name__ == "__main__":
    main()
