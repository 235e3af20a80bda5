"""examples/bedrock, built and installed as a user does it, and what a user without it reads."""

from __future__ import annotations

import ast
import os
import shutil
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from rxllm import Engine
from rxllm.values import EngineError
from tests.corpus import VARIABLE
from tests.test_example_plugin import ROOT, run

pytestmark = pytest.mark.timeout(600)

PACKAGE = ROOT / "examples" / "bedrock"
TESTS = sorted(path.name for path in (PACKAGE / "tests").glob("test_*.py"))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the package; its dependencies are those of this one."""
    pytest.importorskip("botocore", reason="botocore is not installed: pip install 'rxllm[test]'")
    folder = tmp_path_factory.mktemp("user")
    ignored = shutil.ignore_patterns("*.egg-info", "build", "__pycache__", ".*")
    shutil.copytree(PACKAGE, folder / "package", ignore=ignored)
    venv.create(folder / "venv")
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    site_packages = Path(
        run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip()
    )
    (site_packages / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-build-isolation"]
    run([*pip, f"{folder / 'package'}[test]"], folder)
    return python


@pytest.mark.judges
@pytest.mark.parametrize("name", TESTS)
def test_its_own_tests_pass(python: Path, name: str) -> None:
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{name}"]
    if os.environ.get(VARIABLE):
        command = ["env", f"{VARIABLE}={os.environ[VARIABLE]}", *command]
    output = run(command, python.parents[2] / "package")
    assert " passed" in output
    assert "failed" not in output


@pytest.mark.judges
def test_it_is_found_by_its_names(python: Path) -> None:
    code = "import rxllm; print(rxllm.Engine.from_model('bedrock:m').adapter, rxllm.Engine('bedrock-mantle:m').adapter)"
    assert run([str(python), "-c", code], python.parents[2]).split() == [
        "Bedrock('https://bedrock-runtime.REGION.amazonaws.com')",
        "MantleChat('https://bedrock-mantle.REGION.api.aws/v1')",
    ]


@pytest.mark.parametrize("name", ["bedrock", "bedrock-mantle"])
def test_without_it_one_line_names_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxllm.plugins._points", lambda group: [])
    with pytest.raises(EngineError) as caught:
        Engine.from_model(f"{name}:amazon.nova-lite-v1:0")
    assert caught.value.reason == "missing_dependency"
    assert caught.value.message == f"{name} is in a package of its own: run pip install rxllm-bedrock"


def test_it_is_as_small_as_an_example() -> None:
    """Count lines of code: no blank lines, comments or docstrings."""
    code = 0
    for path in (PACKAGE / "src").rglob("*.py"):
        text = path.read_text()
        docstrings = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        lines = enumerate(text.splitlines(), 1)
        code += sum(1 for number, line in lines if line.strip() and line.strip()[0] != "#" and number not in docstrings)
    assert code <= 450
