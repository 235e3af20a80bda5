"""``python -m rxllm new-plugin``: the example package under another name, which works as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rxllm.cli import main
from rxllm.cli._main import TEMPLATE, renamed
from tests.programs import python

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"


def files(folder: Path) -> dict[str, str]:
    """The text of every file that belongs to a package; the rest was made by running it."""
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    wanted = [name for name in names if not any(part.startswith((".", "__pyc", "build")) for part in name.parts)]
    return {
        name.as_posix(): (folder / name).read_text() for name in wanted if not any("egg-info" in p for p in name.parts)
    }


def test_it_is_the_example_under_another_name(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-plugin", "acme-ai"]) == 0
    assert "cd rxllm-acme-ai" in capsys.readouterr().out
    expected = {renamed(name, "acme-ai"): renamed(text, "acme-ai") for name, text in files(EXAMPLE).items()}
    written = files(tmp_path / "rxllm-acme-ai")
    assert written == expected
    others = "".join(written.values()).replace("docs.cohere.com", "")
    assert "cohere" not in others.lower()
    assert files(EXAMPLE) == {renamed(name, "cohere"): text for name, text in files(EXAMPLE).items()}


@pytest.mark.parametrize(
    "name", ["Acme", "acme_ai", "2acme", "../acme", "acme-", "openai", "local", "none", "request", "tests"]
)
def test_a_name_that_cannot_be_is_wrong_usage(name: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["new-plugin", name])
    assert ended.value.code == 2
    assert name in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_already_is_left_alone(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rxllm-acme").mkdir()
    assert main(["new-plugin", "acme"]) == 1
    assert "File exists: 'rxllm-acme'" in capsys.readouterr().err
    assert list((tmp_path / "rxllm-acme").iterdir()) == []


@pytest.mark.judges
def test_it_installs_and_its_tests_pass_in_a_fresh_directory(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert python("-m", "rxllm", "new-plugin", "acme-ai", cwd=tmp_path, env=environment).returncode == 0
    folder, site = tmp_path / "rxllm-acme-ai", tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-build-isolation", "--no-deps"]
    run([*pip, "--target", str(site), str(folder)], tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    tested = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", cwd=folder, env=environment)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    used = "import rxllm; print(rxllm.Engine('acme-ai:m').adapter, rxllm.operators.plugins.citations())"
    assert python("-c", used, cwd=tmp_path, env=environment).stdout.startswith("AcmeAi('https://api.acme-ai.example')")
    used = "import rxllm; print(rxllm.Engine('acme-ai:m', base_url='http://localhost', api_key='key').adapter)"
    assert python("-c", used, cwd=tmp_path, env=environment).stdout.strip() == "AcmeAi('http://localhost')"
    linted = python("-m", "ruff", "check", "-q", str(folder))
    assert linted.returncode == 0, linted.stdout


@pytest.mark.judges
def test_the_template_is_in_the_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", ".*")
    shutil.copytree(ROOT / "rxllm", source / "rxllm", symlinks=True, ignore=ignored)
    shutil.copytree(EXAMPLE, source / "examples" / "plugin", ignore=ignored)
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE", "_rxllm_pytestplugin.py"):
        shutil.copy(ROOT / name, source)
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-build-isolation", "--no-deps"]
    run([*wheel, "-w", str(tmp_path), str(source)], tmp_path)
    archive = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    prefix = f"rxllm/cli/{TEMPLATE.name}/"
    names = {name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix)}
    assert names == {*files(EXAMPLE)}
    assert "rxllm = rxllm.cli:main" in next(
        archive.read(name).decode() for name in archive.namelist() if name.endswith("entry_points.txt")
    )


def run(command: list[str], folder: Path) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder)
    assert finished.returncode == 0, finished.stdout + finished.stderr
