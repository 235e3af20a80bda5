"""Each notebook, executed from scratch in a fresh kernel; the outputs stored in it have the same kinds."""

import json
import re
from pathlib import Path

import pytest

from tests.test_docs import anchors

pytestmark = pytest.mark.long

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.mark.timeout(300)
@notebooks
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_it_runs_and_shows_what_it_kept(path: Path):
    pytest.importorskip("xllamacpp", reason="the notebooks' model needs rxllm[local]")
    nbformat = pytest.importorskip("nbformat", reason="notebooks need rxllm[test]")
    if "import pandas" in path.read_text():
        pytest.importorskip("pandas", reason="its data frames need rxllm[test]")
    from nbclient import NotebookClient

    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    for cell in fresh.cells:
        cell.pop("outputs", None) if cell.cell_type != "code" else cell.update(outputs=[], execution_count=None)
    NotebookClient(fresh, timeout=120, kernel_name="python3").execute()
    progress = {"stderr"}  # of a first download
    assert [kinds(cell) - progress for cell in fresh.cells] == [kinds(cell) for cell in stored.cells]


def kinds(cell: dict) -> set[str]:
    return {output.get("name") or output["output_type"] for output in cell.get("outputs", [])}


@notebooks
def test_it_was_kept_as_it_ran_without_red_boxes_and_folders_of_its_author(path: Path):
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not {"stderr", "error"} & set().union(*map(kinds, code))
    assert re.findall(r"/(?:home|root|tmp|work|Users)/\S*", str([cell["outputs"] for cell in code])) == []


@notebooks
def test_what_it_points_to_exists(path: Path):
    cells = json.loads(path.read_text())["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    for link, anchor in re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", prose):
        target = path.parent / link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"
