"""Operators of one's own: a function of a stream, and a state machine for `lift`.

Prints::

    HELLO THERE
    ['Hello ', 'there', '(2 pieces)']
"""

from collections.abc import Iterable
from typing import assert_type

from reactivex import Observable

import rxllm
from rxllm import Fake, Stream
from rxllm import operators as ops


def shout(texts: Observable[str]) -> Observable[str]:
    return texts.map(str.upper)


class Counted:
    """Emits a note about the number of pieces at the end."""

    def __init__(self) -> None:
        self.pieces = 0

    def feed(self, item: str) -> Iterable[str]:
        self.pieces += 1
        return [item]

    def close(self) -> Iterable[str]:
        return [f"({self.pieces} pieces)"]


texts = rxllm.stream_generate(Fake(["Hello ", "there"]), "Hi").pipe(ops.text())
print("".join(assert_type(texts.pipe(shout), Stream[str])))
print(list(assert_type(texts.pipe(ops.lift(Counted)), Stream[str])))
