"""The types of the providers' SDKs as judges of requests. Where judges are left out, they are not imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

import pytest

from tests import tiers


def assert_fits(module: str, name: str, body: Any) -> None:
    """Assert that `body` is of a type of an SDK, as pydantic reads it. Without the SDK the test is skipped."""
    if not tiers.leaves_out_judges:
        _consume(_reader(module, name).validate_python(body))


@cache
def _reader(module: str, name: str) -> Any:
    pydantic = pytest.importorskip("pydantic")
    return pydantic.TypeAdapter(getattr(pytest.importorskip(module), name))


def _consume(value: Any) -> None:
    """Read all of `value`: pydantic checks an Iterable only as it is read."""
    if isinstance(value, Mapping):
        value = list(cast(Mapping[str, Any], value).values())
    if isinstance(value, list | tuple | Iterator) or type(value).__name__ == "ValidatorIterator":
        for item in cast(list[Any], value):
            _consume(item)
