"""The notebooks, executed: ``python -m tests.notebooks`` runs them all, or those named, and keeps their outputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode

FOLDER = Path(__file__).parent.parent / "notebooks"


def executed(path: Path) -> NotebookNode:
    """Return the notebook with the outputs of a run in a fresh kernel, without the times of that run."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    NotebookClient(notebook, timeout=120, kernel_name="python3", coalesce_streams=True, record_timing=False).execute()
    return notebook


def main(names: list[str]) -> None:
    import nbformat

    for path in [FOLDER / Path(name).name for name in names] or sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(executed(path), path)
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
