"""Functions that combine streams: `merge`, `zip` and `combine_latest`."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import reactivex
from reactivex import Observable

from rxllm.runtime._stream import Stream
from rxllm.runtime.stream_arguments import check_streams

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@overload
def merge(first: Observable[A], /) -> Stream[A]: ...
@overload
def merge(first: Observable[A], second: Observable[B], /) -> Stream[A | B]: ...
@overload
def merge(first: Observable[A], second: Observable[B], third: Observable[C], /) -> Stream[A | B | C]: ...
@overload
def merge(*streams: Observable[Any]) -> Stream[Any]: ...
def merge(*streams: Observable[Any]) -> Stream[Any]:
    """Emit the items of all `streams` as they arrive.

    ::

        a              --1-----2--|
        b              -----3--|
        merge(a, b)    --1--3--2--|

    >>> from reactivex import of
    >>> list(merge(of(1, 2), of(3)))
    [1, 2, 3]

    The first error ends the stream. To tell the streams apart, and to keep the others after an error, use
    `merge_labelled`.

    Raises ``ValidationError("invalid_option")`` if there are no streams, or if one of them is not an Observable.
    """
    check_streams("streams", streams)
    return Stream.of(reactivex.merge(*streams))


@overload
def zip(first: Observable[A], second: Observable[B], /) -> Stream[tuple[A, B]]: ...
@overload
def zip(first: Observable[A], second: Observable[B], third: Observable[C], /) -> Stream[tuple[A, B, C]]: ...
@overload
def zip(*streams: Observable[Any]) -> Stream[tuple[Any, ...]]: ...
def zip(*streams: Observable[Any]) -> Stream[Any]:
    """Emit tuples: the first items of all `streams`, then their second items, and so on.

    ::

        a            --1-----2-----|
        b            -----3-----4--|
        zip(a, b)    -----x-----y--|        (x: (1, 3), y: (2, 4))

    >>> from reactivex import of
    >>> list(zip(of(1, 2), of("a", "b")))
    [(1, 'a'), (2, 'b')]

    The shortest stream ends it. Raises the same errors as `merge`.
    """
    check_streams("streams", streams)
    return Stream.of(reactivex.zip(*streams))


@overload
def combine_latest(first: Observable[A], second: Observable[B], /) -> Stream[tuple[A, B]]: ...
@overload
def combine_latest(first: Observable[A], second: Observable[B], third: Observable[C], /) -> Stream[tuple[A, B, C]]: ...
@overload
def combine_latest(*streams: Observable[Any]) -> Stream[tuple[Any, ...]]: ...
def combine_latest(*streams: Observable[Any]) -> Stream[Any]:
    """Emit a tuple of the newest items of all `streams` whenever one of them emits.

    ::

        a                       --1-----2----|
        b                       -----3----4--|
        combine_latest(a, b)    -----x--y-z--|        (x: (1, 3), y: (2, 3), z: (2, 4))

    >>> from reactivex import of
    >>> list(combine_latest(of(1, 2), of("a", "b")))
    [(2, 'a'), (2, 'b')]

    Nothing is emitted until each stream has emitted an item. Raises the same errors as `merge`.
    """
    check_streams("streams", streams)
    return Stream.of(reactivex.combine_latest(*streams))
