"""The table of what the recordings cover: one command prints it, and everything in it decodes."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.corpus import VARIABLE
from tests.programs import python

pytestmark = pytest.mark.judges

ROOT = Path(__file__).parent.parent


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "tests.coverage", cwd=ROOT, env={**os.environ, **environment})


def test_everything_decodes():
    if not Path(os.environ.get(VARIABLE) or "/dev/null").is_dir():
        pytest.skip(f"recorded streams are not at hand: set {VARIABLE} to their folder")
    ran = run()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    head, *lines, total, verdict = ran.stdout.splitlines()
    assert verdict == "0 do not decode"
    assert len(lines) >= 30
    columns = head.split()[2:]
    counts = dict(zip(columns, total.split()[1:], strict=True))
    assert int(counts["streams"]) >= 1200
    assert all(count.isdigit() for count in counts.values()), f"nothing recorded shows it: {counts}"


def test_without_recordings_it_says_what_is_missing():
    ran = run(**{VARIABLE: ""})
    assert (ran.returncode, ran.stdout) == (2, "")
    assert VARIABLE in ran.stderr
