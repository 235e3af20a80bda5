import importlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent


def pytest_collect_file(file_path: Path, parent: Any) -> None:
    """Import a module of the library by its name before its doctests are collected.

    Pytest's import mode ``importlib`` executes a module's file even if its package has just imported it, which would
    define its classes twice.
    """
    if file_path.suffix == ".py" and file_path.is_relative_to(ROOT / "rxllm") and file_path.stem != "__main__":
        name = ".".join(file_path.relative_to(ROOT).with_suffix("").parts)
        importlib.import_module(name.removesuffix(".__init__"))
