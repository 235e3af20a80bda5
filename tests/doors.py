"""A contract of import-linter: what is private in a room stays in it."""

from __future__ import annotations

from typing import Any

from importlinter import Contract, ContractCheck, output


def is_private(imported: str, importer: str) -> bool:
    """Whether a module of rxllm is private in a room that `importer` is not in; ``rxllm._names`` is everybody's."""
    parts = imported.split(".")
    return any(part.startswith("_") for part in parts[2:]) and parts[:2] != importer.split(".")[:2]


class DoorsContract(Contract):
    """No module imports one with an underscore in its path from another room."""

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        doors = [
            (importer, imported)
            for importer in sorted(graph.modules)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if imported.startswith("rxllm.") and is_private(imported, importer)
        ]
        return ContractCheck(kept=not doors, metadata={"doors": doors})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for importer, imported in check.metadata["doors"]:
            output.print_error(f"{importer} imports {imported}, which is private in its room", bold=False)
