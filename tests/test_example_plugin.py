"""The example of a package of one's own, built and installed as a user does it, with a broken one beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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

assert {"broken", "cohere", "openai"} <= set(rxllm.providers())
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


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the example and the broken package. What they need it finds where we find it.

    Without an index pip fails if what the example declares, for its tests too, is not all that it needs of ours.
    """
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(
        PLUGIN, folder / "plugin", ignore=shutil.ignore_patterns("*.egg-info", "build", "__pycache__", ".*")
    )
    (folder / "broken").mkdir()
    (folder / "broken" / "pyproject.toml").write_text(BROKEN)
    (folder / "broken" / "rxllm_broken.py").write_text("import no_such_module_anywhere\n")
    venv.create(folder / "venv")
    made = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    theirs = Path(run([str(made), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip())
    (theirs / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", str(made), "install", "-q", "--no-index", "--no-build-isolation"]
    run([*pip, f"{folder / 'plugin'}[test]", str(folder / "broken")], folder)
    return made


def run(command: list[str], folder: Path) -> str:
    """What a command says on standard output; nothing of this test run's own Python is in its environment."""
    own = ("PYTHON", "VIRTUAL_ENV", "RXLLM_", "PYTEST_", "CO_API_KEY")
    environment = {name: held for name, held in os.environ.items() if not name.startswith(own)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_its_own_tests_pass(python: Path) -> None:
    said = run([str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"], python.parents[2] / "plugin")
    assert " passed" in said
    assert "failed" not in said


def test_it_is_found_and_a_broken_one_beside_it_hurts_nobody(python: Path) -> None:
    adapter, cited, *failed, last = run([str(python), "-c", USED], python.parents[2]).splitlines()
    assert (adapter, cited, last) == ("Cohere", "[]", "All is well.")
    assert len(failed) == 2
    for line in failed:
        assert line.startswith("missing_dependency | ")
        assert "of rxllm-broken 0.3 does not load: ModuleNotFoundError" in line
        assert "pip install --upgrade rxllm-broken" in line
