"""`sandbox`: run code that names its model with another one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

from rxllm.engine import Engine, as_engine, stand_in
from rxllm.images import ImageAdapter

A = TypeVar("A")


@contextmanager
def sandbox(engine: A) -> Generator[A]:
    """Replace every engine that is named by a string (``"openai:gpt-5"``, ``"local"``) with `engine` inside the block.

    >>> from rxllm import Fake, generate
    >>> def name_primes():
    ...     return generate("openai:gpt-5", "Name three primes.").run().output_text
    >>> with sandbox(Fake("2, 3, 5.")) as fake:
    ...     name_primes()
    '2, 3, 5.'
    >>> fake.requests[0].model
    'gpt-5'

    `engine` is an `Engine`, an adapter, or an image adapter; for both kinds of calls, an `Engine` with both. The model
    is the one that the code names. A sandbox holds in this context and in those made from it (tasks, ``asyncio.run``,
    ``asyncio.to_thread``), as context variables do, for the calls that are made inside, whenever they are subscribed
    to; sandboxes side by side or within each other are independent. Engines made before stay as they are.
    """
    only_images = isinstance(engine, ImageAdapter) and not hasattr(engine, "stream")
    token = stand_in.set(Engine(image_adapter=engine) if only_images else as_engine(engine))
    try:
        yield engine
    finally:
        stand_in.reset(token)
