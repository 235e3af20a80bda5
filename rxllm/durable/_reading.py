"""Read what a store holds, which may be damaged: what cannot be read is a ``RunError("unreadable")``."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rxllm import RunError


@contextmanager
def reading(
    what: str, run_id: str | None = None, remedy: str = "the store was damaged, or a newer rxllm has written it"
) -> Generator[None]:
    """Turn every error of the body, which reads `what`, into a ``RunError("unreadable")``."""
    try:
        yield
    except Exception as error:
        where = f"run error ({run_id}): " if run_id else ""
        why = str(error) or type(error).__name__
        raise RunError("unreadable", f"{where}{what} cannot be read: {why}; {remedy}", run_id=run_id) from error
