"""The example package, built and installed as a user does it, with a broken package beside it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parent.parent
SECONDS = 500.0
"""What is built, installed and tested takes minutes on a machine that is busy."""
PLUGIN = ROOT / "examples" / "plugin"

BROKEN = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "rxllm-broken"
version = "0.3"

[project.entry-points."rxllm.adapters"]
broken = "rxllm_broken:connect"

[project.entry-points."rxllm.operators"]
crash = "rxllm_broken:crash"

[tool.setuptools]
py-modules = ["rxllm_broken"]
"""

USED = """
import sys
import rxllm
from rxllm import operators as ops

assert {"broken", "cohere", "openai"} <= set(rxllm.adapters.providers())
assert {"citations", "crash"} <= set(dir(ops.plugins))
assert not {"rxllm_broken", "rxllm_cohere"} & set(sys.modules), "listing has imported something"

print(type(rxllm.Engine.from_model("cohere:command-a").adapter).__name__)
answer = rxllm.stream_generate(rxllm.Fake("Hi"), "Hello")
print(answer.pipe(ops.plugins.citations(), ops.tap(print)).to_list().run())
for use in (lambda: ops.plugins.crash(), lambda: rxllm.generate("broken:m", "Hi").run()):
    try:
        use()
    except rxllm.EngineError as error:
        print(error.reason, "|", error)
print(rxllm.generate(rxllm.Fake("All is well."), "Hello").run().output_text)
"""


FILES = sorted((ROOT / "examples").rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_an_example_uses_only_what_is_public(file: Path) -> None:
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rxllm":
            assert [name.name for name in node.names if not is_public(str(node.module), name.name)] == []
    # What a class of rxllm has under a private name is not used; what the file itself defines is its own.
    used = {name for name in attributes(tree, ast.Load) if name.startswith("_") and not name.startswith("__")}
    assert used - attributes(tree, ast.Store) == set()


def is_public(module: str, name: str) -> bool:
    home = importlib.import_module(module)
    if name in getattr(home, "__all__", ()):
        return True
    return hasattr(home, "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None and name[0] != "_"


def attributes(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """The names of attributes that are read, or of attributes and functions that are defined."""
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, context)}
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return names | defined if context is ast.Store else names


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the example and the broken package; their dependencies are those of this one.

    pip gets no index, so it fails if the example declares anything that is not installed here.
    """
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(
        PLUGIN, folder / "plugin", ignore=shutil.ignore_patterns("*.egg-info", "build", "__pycache__", ".*")
    )
    (folder / "broken").mkdir()
    (folder / "broken" / "pyproject.toml").write_text(BROKEN)
    (folder / "broken" / "rxllm_broken.py").write_text("import no_such_module_anywhere\n")
    venv.create(folder / "venv")
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    print_folder = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = Path(run([str(python), "-c", print_folder], folder).strip())
    (site_packages / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-build-isolation"]
    run([*pip, f"{folder / 'plugin'}[test]", str(folder / "broken")], folder)
    return python


def run(command: list[str], folder: Path) -> str:
    """Return the standard output of a command, run without the environment variables of this Python."""
    own = ("PYTHON", "VIRTUAL_ENV", "RXLLM_", "PYTEST_", "CO_API_KEY")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    finished = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=folder, env=environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.judges
def test_its_own_tests_pass(python: Path) -> None:
    output = run([str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"], python.parents[2] / "plugin")
    assert " passed" in output
    assert "failed" not in output


@pytest.mark.judges
def test_it_is_found_and_a_broken_one_beside_it_hurts_nobody(python: Path) -> None:
    adapter, cited, *failed, last = run([str(python), "-c", USED], python.parents[2]).splitlines()
    assert (adapter, cited, last) == ("Cohere", "[]", "All is well.")
    assert len(failed) == 2
    for line in failed:
        assert line.startswith("missing_dependency | ")
        assert "from rxllm-broken 0.3 cannot be loaded: ModuleNotFoundError" in line
        assert "pip install --upgrade rxllm-broken" in line
