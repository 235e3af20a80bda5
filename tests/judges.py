"""Judges: programs outside Python that some tests need. Without one its tests are skipped by name; CI requires all."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def judge(program: str) -> str:
    """Return the path of `program`; without it the test is skipped, or fails if RXLLM_JUDGES is ``required``."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")
    return found or absent(program, f"apt-get install {program}")


def absent(name: str, remedy: str) -> NoReturn:
    """Skip the test, or fail it if RXLLM_JUDGES is ``required``."""
    reason = f"{name} is not installed: {remedy}"
    if os.environ.get("RXLLM_JUDGES") == "required":
        pytest.fail(f"{reason}; RXLLM_JUDGES=required allows no test to be skipped for that")
    pytest.skip(reason)
