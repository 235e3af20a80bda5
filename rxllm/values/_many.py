"""What several streams at once say of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from rxllm.values._usage import Usage

T = TypeVar("T", covariant=True)


@dataclass(frozen=True)
class Labelled(Generic[T]):
    """An item, and the label of the stream that it is of."""

    label: str
    item: T


@dataclass(frozen=True)
class Progress:
    """How far many requests are: `done` of `total` have ended, `failed` of these without an answer.

    `usage` is the sum of what they have used.
    """

    done: int
    failed: int
    total: int
    usage: Usage
