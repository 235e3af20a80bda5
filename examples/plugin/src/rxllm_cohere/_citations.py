"""The citations of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reactivex import Observable
from rxllm import Event, SourceAdded, Stream
from rxllm import operators as ops


def citations() -> Callable[[Observable[Event]], Stream[Mapping[str, Any]]]:
    """Emit each source of the answer once, as the provider sends it.

    ::

        source          --text--A--text--A--B--|
        citations()     --------A-----------B--|

    >>> from reactivex import of
    >>> paper = {"text": "-3", "sources": [{"id": "paper:7"}]}
    >>> list(of(SourceAdded(paper), SourceAdded(paper)).pipe(citations()))
    [{'text': '-3', 'sources': [{'id': 'paper:7'}]}]

    An ``ErrorEvent`` becomes ``on_error``.
    """

    def operator(source: Observable[Event]) -> Stream[Mapping[str, Any]]:
        return Stream.of(source).pipe(ops.raise_errors(), ops.only(SourceAdded), ops.lift(_Distinct))

    return operator


class _Distinct:
    """The state of one subscription. `lift` feeds it each item and closes it at the end."""

    def __init__(self) -> None:
        self._seen: list[Mapping[str, Any]] = []

    def feed(self, event: SourceAdded) -> list[Mapping[str, Any]]:
        if event.source in self._seen:
            return []
        self._seen.append(event.source)
        return [event.source]

    def close(self) -> list[Mapping[str, Any]]:
        return []
