"""Each notebook, executed from scratch in a fresh kernel; the outputs stored in it have the same kinds."""

import json
import re
from pathlib import Path

import pytest

from tests.notebooks import FOLDER, executed
from tests.pages import anchors

pytestmark = pytest.mark.judges

notebooks = pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)


@pytest.mark.timeout(300)
@notebooks
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_it_runs_and_shows_what_it_kept(path: Path):
    pytest.importorskip("xllamacpp", reason="the notebooks' model needs rxllm[local]")
    pytest.importorskip("nbclient", reason="notebooks need rxllm[test]")
    for package in ("pandas", "matplotlib"):
        if re.search(f"(import|from) {package}", path.read_text()):
            pytest.importorskip(package, reason="its tables and plots need rxllm[test]")
    fresh = executed(path)
    progress = {"stderr"}  # of a first download
    assert [kinds(cell) - progress for cell in fresh.cells] == [kinds(cell) for cell in cells_of(path)]
    for sent, written in re.findall(r"sky blue\?': '(\d+) of (\d+) words", str(fresh.cells)):
        assert int(sent) < int(written)  # the server stopped in the middle of the answer that was cancelled


def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text())["cells"]


def kinds(cell: dict) -> set[str]:
    return {output.get("name") or output["output_type"] for output in cell.get("outputs", [])}


@notebooks
def test_it_was_kept_as_it_ran_without_red_boxes_and_folders_of_its_author(path: Path):
    code = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not {"stderr", "error"} & set().union(*map(kinds, code))
    assert re.findall(r"/(?:home|root|tmp|work|Users)/\S*", str([cell["outputs"] for cell in code])) == []


@notebooks
def test_it_begins_with_what_it_is_for_and_what_its_model_is(path: Path):
    first, *others = ["".join(cell["source"]) for cell in cells_of(path)]
    title, purpose, model, *_ = first.split("\n\n")
    assert title.startswith("# ")
    assert purpose.startswith("This notebook ")
    assert model.startswith("**The model")
    code = "\n".join(others)
    assert ("script" in model) == ("Fake(" in code or "Loopback(" in code)
    assert ("real" in model or "on this machine" in model) == ('("local"' in code or "Loopback(" in code)


@notebooks
def test_its_pictures_suit_light_and_dark_pages(path: Path):
    """Plots are SVG without a background, whose texts are readable on both."""
    outputs = [output.get("data", {}) for cell in cells_of(path) for output in cell.get("outputs", ())]
    assert not any("image/png" in data for data in outputs)
    plots = ["".join(data["image/svg+xml"]) for data in outputs if "matplotlib" in str(data.get("image/svg+xml"))]
    for plot in plots:
        assert "fill: #ffffff" not in plot
        assert "<text" in plot
    assert bool(plots) == ("pyplot" in path.read_text())


@notebooks
def test_what_it_points_to_exists(path: Path):
    prose = "\n".join("".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "markdown")
    for link, anchor in re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", prose):
        target = path.parent / link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"
