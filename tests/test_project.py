"""The files around the package agree with it: versions, names of files, and who is asked."""

import re
import tomllib
from pathlib import Path

import pytest

import rxllm

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_there_is_one_version() -> None:
    cited = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert [PROJECT["version"], *cited] == [rxllm.__version__] * 2


def test_there_is_one_license() -> None:
    assert re.findall(r"^license: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) == [PROJECT["license"]]


def test_there_is_one_place_of_the_project() -> None:
    files = [*ROOT.glob(".github/**/*.yml"), ROOT / "CITATION.cff", ROOT / "docs" / "site" / "zensical.toml"]
    text = "\n".join(path.read_text() for path in files)
    places = set(re.findall(r"https://github\.com/[\w.-]+/[\w.-]+", text))
    assert places == {PROJECT["urls"]["Source"]}


def test_ci_tries_every_python_that_is_claimed() -> None:
    claimed = {part for line in PROJECT["classifiers"] for part in re.findall(r":: (3\.\d+)$", line)}
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert claimed == set(re.findall(r'"(3\.\d+)"', workflow))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_what_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    links = set(re.findall(r"\]\(([^)#:]+)", text))
    files = set(re.findall(r"`((?:rxllm|tests|docs|examples)/[\w/]+\.py)`", text)) - {
        "rxllm/operators/_name.py",
        "tests/operators/test_name.py",
    }
    assert links | files
    assert [name for name in links | files if not (ROOT / name).exists()] == []


def test_the_commands_of_contributing_are_extras_and_programs_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert {*re.findall(r"'\.\[(\w+)\]'", text)} <= PROJECT["optional-dependencies"].keys()
    modules = [name.replace(".", "/") for name in re.findall(r"python -m (tests\.\w+)", text)]
    assert modules
    assert all((ROOT / f"{name}.py").exists() or (ROOT / name / "__main__.py").exists() for name in modules)


def test_every_package_of_the_tests_has_a_pinned_version() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [
        *PROJECT["dependencies"],
        *(one for names in extras.values() for one in names if names != extras["bench"]),
    ]
    names = {re.split(r"[\[>=<; ]", requirement)[0].lower() for requirement in wanted} - {"rxllm"}
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "tests" / "constraints.txt").read_text(), re.MULTILINE))
    assert names - pinned == set()
