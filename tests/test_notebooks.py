"""Each notebook, executed from scratch in a fresh kernel; the outputs stored in it have the same kinds."""

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_it_runs_and_shows_what_it_kept(path: Path):
    pytest.importorskip("xllamacpp", reason="the notebooks' model needs rxllm[local]")
    nbformat = pytest.importorskip("nbformat", reason="notebooks need rxllm[test]")
    from nbclient import NotebookClient

    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    for cell in fresh.cells:
        cell.pop("outputs", None) if cell.cell_type != "code" else cell.update(outputs=[], execution_count=None)
    NotebookClient(fresh, timeout=120, kernel_name="python3").execute()
    assert [kinds(cell) for cell in fresh.cells] == [kinds(cell) for cell in stored.cells]


def kinds(cell: dict) -> set[str]:
    """The kinds of a cell's outputs, without the progress of a first download on stderr."""
    outputs = cell.get("outputs", [])
    return {out.get("name") or out["output_type"] for out in outputs if out.get("name") != "stderr"}
