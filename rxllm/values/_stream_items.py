"""Items that operators emit besides events and values: labels, texts with their paths, progress, traces."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

from rxllm.values._usage import Usage

T = TypeVar("T", covariant=True)


class Labelled(msgspec.Struct, Generic[T], frozen=True):
    """An item, and the label of the stream it comes from."""

    label: str
    item: T


class TextAt(msgspec.Struct, frozen=True):
    """A piece of the string at `path` in a JSON answer: the keys and indexes that lead to it."""

    path: tuple[str | int, ...]
    text: str


class Progress(msgspec.Struct, frozen=True):
    """How far a batch of requests is: `done` of `total` have ended, and `failed` of these have no answer.

    `usage` is the sum of their usage. `journaled` of those that have ended were answered in the journal, and not asked.
    `retries` is the number of attempts, so far, that failed and were followed by another.
    """

    done: int
    failed: int
    total: int
    usage: Usage
    journaled: int = 0
    retries: int = 0


class Trace(msgspec.Struct, frozen=True):
    """One signal at one place of a pipe.

    `kind` is the signal, `at` the seconds since the subscription, `count` the number of items before it. `item` is the
    item or the error; None for the other kinds.
    """

    kind: Literal["subscribe", "next", "error", "end", "dispose"]
    at: float
    count: int
    item: Any = None
