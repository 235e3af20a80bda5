"""Code under test that names its model, without that model."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

from rxllm.engine import Engine, as_engine, stand_in
from rxllm.images import ImageAdapter

A = TypeVar("A")


@contextmanager
def sandbox(engine: A) -> Generator[A]:
    """Within it, every engine that is given as a string (``"openai:gpt-5"``, ``"local"``) is `engine` instead.

    >>> from rxllm import Fake, generate
    >>> def name_primes():
    ...     return generate("openai:gpt-5", "Name three primes.").run().output_text
    >>> with sandbox(Fake("2, 3, 5.")) as fake:
    ...     name_primes()
    '2, 3, 5.'
    >>> fake.requests[0].model
    'gpt-5'

    `engine` is an `Engine`, an adapter, or an image adapter; for both kinds of calls, an `Engine` with both. The model
    is the one that the code names. It holds in this context and in those made from it (tasks, ``asyncio.run``,
    ``asyncio.to_thread``), as context variables do, for the calls that are made inside, whenever they are subscribed
    to; sandboxes side by side and in each other do not meet. An engine that was made before stays what it is.
    """
    made = Engine(image_adapter=engine) if _draws(engine) else as_engine(engine)
    token = stand_in.set(made)
    try:
        yield engine
    finally:
        stand_in.reset(token)


def _draws(given: object) -> bool:
    return isinstance(given, ImageAdapter) and not hasattr(given, "stream")
