"""The client scenarios of @modelcontextprotocol/conformance, whose server checks each request.

Left out: ``auth/*`` (a header is given, OAuth is not rxllm's), ``sep-2640-*`` (skills, an extension), and
``elicitation-sep1034-client-defaults`` (people answer, and see the defaults in the schema of the question).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judges import absent, node
from tests.runtime.support import ROOT

pytestmark = pytest.mark.judges

PACKAGE = ROOT / "tests" / "node_modules" / "@modelcontextprotocol" / "conformance"
CLIENT = Path(__file__).with_name("conformance_client.py")

SCENARIOS = [
    *(
        (name, "2026-07-28")
        for name in (
            "tools_call",
            "request-metadata",
            "http-standard-headers",
            "http-custom-headers",
            "http-invalid-tool-headers",
            "sep-2322-client-request-state",
            "json-schema-ref-no-deref",
            "json-schema-2020-12-preservation",
        )
    ),
    ("initialize", "2025-11-25"),
    ("tools_call", "2025-11-25"),
    ("initialize", "2025-06-18"),
    ("json-schema-2020-12-preservation", "2025-11-25"),
]


@pytest.mark.parametrize(("scenario", "version"), SCENARIOS)
def test_a_scenario_passes(scenario: str, version: str, tmp_path: Path) -> None:
    if not PACKAGE.is_dir():
        absent("@modelcontextprotocol/conformance", "npm ci --prefix tests")
    command = [node(), str(PACKAGE / "dist" / "index.js"), "client", "--command", f"{sys.executable} {CLIENT}"]
    command += ["--scenario", scenario, "--spec-version", version, "--output-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    found = list(tmp_path.rglob("checks.json"))
    assert found, ran.stdout[-2000:] + ran.stderr[-2000:]
    checks = json.loads(found[0].read_text())
    failed = [(check["id"], check.get("errorMessage")) for check in checks if check["status"] in ("FAILURE", "WARNING")]
    assert not failed
    assert [check for check in checks if check["status"] == "SUCCESS"]
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
