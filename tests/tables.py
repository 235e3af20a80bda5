"""Tables in tests: a table of hundreds of rows is one test. As a test a row, every process would collect them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def assert_rows(rows: Iterable[tuple[Any, ...]], check: Callable[..., object]) -> None:
    """Call ``check(*row)`` for every row, and raise ``AssertionError`` with a line for each that fails."""
    count, failed = 0, list[str]()
    for row in rows:
        count += 1
        try:
            check(*row)
        except (Exception, pytest.fail.Exception) as error:
            failed.append(f"{', '.join(map(_shown, row))}: {type(error).__name__}: {error}")
    assert count, "the table is empty"
    assert not failed, "\n".join([f"{len(failed)} of {count} rows fail", *failed])


def _shown(value: object) -> str:
    return getattr(value, "__qualname__", None) or f"{value!r:.100}"
