"""Emit the text sentence by sentence."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._lift import lift
from rxllm.operators._shared.words_and_sentences import EventSegmenter, find_sentence
from rxllm.runtime import Stream


def sentences() -> Callable[[Observable[Event]], Stream[str]]:
    """Emit the sentences of the text, each as soon as the next one begins. An ``ErrorEvent`` becomes ``on_error``.

    ::

        source          --Hi. --How --are you?--end-------------|
        sentences()     --------"Hi. "----------"How are you?"--|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Dr. No is ", "here. Ru", "n!"]), "Hi").pipe(sentences()))
    ['Dr. No is here. ', 'Run!']

    Joined, the sentences are the text: white space belongs to the sentence before it. A sentence ends

    - at the end of a line;
    - after ``. ! ? …``, or their like in other scripts, and white space, unless a small letter follows; a ``.`` after
      an initial (``J. S. Bach``, ``e.g.``), a common abbreviation (``Dr.``) or the number of a list item does not
      count;
    - after a full-width mark (``。`` and its like) of Chinese and Japanese, even without white space.

    Closing quotes and brackets belong to the sentence. The result does not depend on how the text was cut into deltas.
    The rest of a block is emitted at its end, but not when the stream fails. A sentence of more than 10,000 characters
    is cut there.
    """
    return lift(lambda: EventSegmenter("sentences", find_sentence))
