"""The text, sentence by sentence."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._lift import lift
from rxllm.operators._shared.segments import EventSegmenter, find_sentence
from rxllm.runtime import Stream


def sentences() -> Callable[[Observable[Event]], Stream[str]]:
    """The sentences of the text, each as soon as the next one begins. An ``ErrorEvent`` becomes ``on_error``.

    ::

        source          --Hi. --How--are you?--end--------|
        sentences()     --------"Hi. "---------"How are you?"--|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Dr. No is ", "here. Ru", "n!"]), "Hi").pipe(sentences()))
    ['Dr. No is here. ', 'Run!']

    Joined, they are the text: white space belongs to the sentence before it. A sentence ends

    - with its line;
    - with ``. ! ? …``, or its like in other scripts, and white space, unless a small letter follows; a ``.`` after an
      initial (``J. S. Bach``, ``e.g.``), a common short form (``Dr.``) or the number of an item is no end;
    - with a mark of full width (``。`` and its like), as Chinese and Japanese have them, also without white space.

    Closing quotes and brackets stay with it. How the text was cut into deltas makes no difference. What is left comes
    at the end of its block; with an error it does not.
    """
    return lift(lambda: EventSegmenter("sentences", find_sentence))
