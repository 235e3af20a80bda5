"""The text, word by word."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._lift import lift
from rxllm.operators._shared.segments import EventSegmenter, find_word
from rxllm.runtime import Stream


def words() -> Callable[[Observable[Event]], Stream[str]]:
    """The words of the text, each as soon as the next one begins. An ``ErrorEvent`` becomes ``on_error``.

    ::

        source      --Hel--lo Wo--rld--end--|
        words()     -------"Hello "----"World"--|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Hel", "lo wo", "rld"]), "Hi").pipe(words()))
    ['Hello ', 'world']

    Joined, they are the text: white space belongs to the word before it. Where a script puts none between words
    (Chinese, Japanese, Thai, ...), each character is a word, with its marks and the punctuation after it. How the text
    was cut into deltas makes no difference. What is left comes at the end of its block; with an error it does not.
    """
    return lift(lambda: EventSegmenter("words", find_word))
