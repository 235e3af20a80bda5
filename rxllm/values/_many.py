"""What several streams at once say of themselves."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from rxllm.values._usage import Usage

T = TypeVar("T", covariant=True)


class Labelled(msgspec.Struct, Generic[T], frozen=True):
    """An item, and the label of the stream that it is of."""

    label: str
    item: T


class Progress(msgspec.Struct, frozen=True):
    """How far many requests are: `done` of `total` have ended, `failed` of these without an answer.

    `usage` is the sum of what they have used.
    """

    done: int
    failed: int
    total: int
    usage: Usage
