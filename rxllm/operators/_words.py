"""Emit the text word by word."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._lift import lift
from rxllm.operators._shared.words_and_sentences import EventSegmenter, find_word
from rxllm.runtime import Stream


def words() -> Callable[[Observable[Event]], Stream[str]]:
    """Emit the words of the text, each as soon as the next one begins. An ``ErrorEvent`` becomes ``on_error``.

    ::

        source      --Hel--lo Wo--rld--end------|
        words()     -------"Hello "----"World"--|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Hel", "lo wo", "rld"]), "Hi").pipe(words()))
    ['Hello ', 'world']

    Joined, the words are the text: white space belongs to the word before it. In scripts without spaces between words
    (Chinese, Japanese, Thai, ...) each character is a word, together with its marks and the punctuation after it. The
    result does not depend on how the text was cut into deltas. The rest of a block is emitted at its end, but not when
    the stream fails. A word of more than 10,000 characters is cut there.
    """
    return lift(lambda: EventSegmenter("words", find_word))
