"""Streamed errors as raised ones."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._pick import pick
from rxllm.runtime import Stream


def raise_errors() -> Callable[[Observable[Event]], Stream[Event]]:
    """An ``ErrorEvent`` becomes ``on_error``; everything else passes.

    ::

        source             --a--b--error--|
        raise_errors()     --a--b--X

    >>> from rxllm import Fake, stream_generate
    >>> stream_generate(Fake(["Hi", ("error", "timeout")]), "Hello").pipe(raise_errors()).run()
    Traceback (most recent call last):
    rxllm.values.errors.AdapterError: adapter error (fake): timeout
    """
    return pick(lambda: lambda event: (event,))
