"""Emit the text word by word or sentence by sentence.

The cuts depend on the text alone, not on its deltas. White space belongs to the segment before it; at the very
beginning, to the segment after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from unicodedata import category

from reactivex import Observable

from rxllm.events import ErrorEvent, Event, MessageCompleted, StepRestarted, TextCompleted, TextDelta
from rxllm.operators._event_operators import EVENTS, lift, not_an_event
from rxllm.operators._select import TextPieces
from rxllm.runtime import Stream

LONGEST = 10_000
"""The maximum number of characters in a segment. It bounds the pending text."""


def words() -> Callable[[Observable[Event]], Stream[str]]:
    """Emit the words of the text, each as soon as the next one begins. An ``ErrorEvent`` becomes ``on_error``.

    ::

        source      --Hel--lo Wo--rld--end------|
        words()     -------"Hello "----"World"--|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Hel", "lo wo", "rld"]), "Hi").pipe(words()))
    ['Hello ', 'world']

    White space belongs to the word before it, so the words together are the whole text. In scripts without spaces
    between words (Chinese, Japanese, Thai, ...) each character is a word, with its marks and the punctuation after it.
    The words do not depend on how the text is split into deltas. The last word of a block is emitted at the end of the
    block, but not if the stream fails. A word is cut after 10,000 characters.
    """
    return lift(lambda: _EventSegmenter("words", find_word))


def sentences() -> Callable[[Observable[Event]], Stream[str]]:
    """Emit the sentences of the text, each as soon as the next one begins. An ``ErrorEvent`` becomes ``on_error``.

    ::

        source          --Hi. --How --are you?--end-------------|
        sentences()     --------"Hi. "----------"How are you?"--|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Dr. No is ", "here. Ru", "n!"]), "Hi").pipe(sentences()))
    ['Dr. No is here. ', 'Run!']

    White space belongs to the sentence before it, so the sentences together are the whole text. A sentence ends

    - at the end of a line;
    - after ``. ! ? …``, or a similar mark of another script, and white space, unless a lower-case letter follows; a
      ``.`` after an initial (``J. S. Bach``, ``e.g.``), a common abbreviation (``Dr.``) or the number of a list item
      does not count;
    - after a full-width mark of Chinese and Japanese, such as ``。``, even without white space.

    Closing quotes and brackets belong to the sentence. The sentences do not depend on how the text is split into
    deltas. The last sentence of a block is emitted at the end of the block, but not if the stream fails. A sentence is
    cut after 10,000 characters.
    """
    return lift(lambda: _EventSegmenter("sentences", find_sentence))


_READ = frozenset({ErrorEvent, MessageCompleted, StepRestarted, TextCompleted, TextDelta})


class _EventSegmenter:
    """Split the text of events into segments. No segment spans two blocks."""

    def __init__(self, name: str, find: Find) -> None:
        self._name = name
        self._pieces = TextPieces(TextDelta, TextCompleted)
        self._segmenter = Segmenter(find)

    def feed(self, event: Event) -> Iterable[str]:
        if type(event) not in _READ:
            if type(event) not in EVENTS:
                raise not_an_event(self._name, event)
            return ()
        if isinstance(event, ErrorEvent):
            raise event.error
        segments = [segment for text in self._pieces(event) for segment in self._segmenter.feed(text)]
        if type(event) is TextCompleted or type(event) is MessageCompleted:
            segments += self._segmenter.close()
        elif type(event) is StepRestarted:
            self._segmenter.close()
        return segments

    def close(self) -> Iterable[str]:
        return self._segmenter.close()


Find = Callable[[str, int, int], int | None]
"""``find(text, begin, start)`` returns the first cut of `text` at or after `start`; the segment begins at `begin`."""


class Segmenter:
    """Split text into segments, which together are the whole text."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._context = ""  # the end of the pending segment, see `_context_of`
        self._pending: list[str] = []
        self._length = 0  # length of the pending segment
        self._has_text = False  # whether more than white space is pending

    def feed(self, text: str) -> list[str]:
        # Only the end of the pending segment is searched again: a long segment must not cost more per piece.
        seen = len(self._context)
        text = self._context + text
        segments: list[str] = []
        begin, taken, start = 0, seen, seen
        while (cut := self._find(text, begin, start)) is not None:
            segments += self._add(text[taken:cut])
            taken, start = cut, cut + 1
            if self._has_text:
                segments.append(self._take())
                begin = cut
        segments += self._add(text[taken:])
        self._context = _context_of(text[begin:])
        return segments

    def close(self) -> list[str]:
        """Return the unfinished segment, if any, and reset."""
        self._context = ""
        rest = self._take()
        return [rest] if rest else []

    def _add(self, text: str) -> list[str]:
        """Add `text` to the pending segment, and return the segments of `LONGEST` characters that this completes."""
        segments: list[str] = []
        while (room := LONGEST - self._length) < len(text):
            self._pending.append(text[:room])
            segments.append(self._take())
            text = text[room:]
        if text:
            self._pending.append(text)
            self._length += len(text)
            self._has_text = self._has_text or not text.isspace()
        return segments

    def _take(self) -> str:
        segment = "".join(self._pending)
        self._pending, self._length, self._has_text = [], 0, False
        return segment


_CONTEXT = 40  # characters; longer than any abbreviation with its closing marks and a number


def _context_of(text: str) -> str:
    """Return the part of `text` on which the next cut may depend: the last words, and whether a line ends there."""
    words = text.rstrip()
    gap = text[len(words) :]
    words = words if len(words) <= _CONTEXT else "x" + words[-_CONTEXT:]  # "x" stands for the earlier words
    return words + ("\n" if "\n" in gap else gap[:1])


_UNSPACED = "".join(
    (
        "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff",  # Thai, Lao, Burmese, Khmer
        "\u3000-\u303f\uff01-\uff0f\uff1a-\uff20",  # full-width punctuation
        "\u3040-\u312f\u31a0-\u31ff",  # kana, bopomofo
        "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff",  # Han, half-width kana
    )
)

_EDGE = re.compile(rf"(?<=\s)(?=\S)|(?=[{_UNSPACED}])|(?<=[{_UNSPACED}])(?=\S)")
_WORD = re.compile(r"\s*\S+\s*|\s+")
_JOINERS = "\u200d\u17d2\u1039"  # zero-width joiner; the signs that stack the next letter in Khmer and Burmese
_JOINED = "\u200d\u0e33\u0eb3\uff9e\uff9f"  # letters in Unicode, but written with the letter before them
_STICKING = ("Mn", "Mc", "Me", "Pe", "Pf", "Po")
_OPENING = ("Ps", "Pi")


def find_word(text: str, begin: int, start: int) -> int | None:
    """Return the start of the next word: after white space or, in unspaced scripts, after a character and its marks."""
    while edge := _EDGE.search(text, start):
        at = edge.start()
        if at > begin and (text[at - 1].isspace() or _are_separable(text[at - 1], text[at])):
            return at
        start = at + 1
    return None


def _are_separable(before: str, after: str) -> bool:
    if before in _JOINERS or after in _JOINED:
        return False
    return category(after) not in _STICKING and category(before) not in _OPENING


def split_words(text: str) -> list[str]:
    """Return the words of `text`, which together are the whole text."""
    if text.isascii():
        return _WORD.findall(text)
    segmenter = Segmenter(find_word)
    return [*segmenter.feed(text), *segmenter.close()]


_ENDS = ".!?…؟۔।॥"  # noqa: RUF001
_WIDE_ENDS = "。！？．｡"  # noqa: RUF001
_CLOSING = "\"'”’»)\\]}」』】）》〉*_"  # noqa: RUF001

_END = re.compile(
    rf"\n\s*(?=\S)"
    rf"|(?P<mark>[{_ENDS}])[{_CLOSING}]{{0,4}}\s+(?=\S)"
    rf"|[{_WIDE_ENDS}][{_CLOSING}]{{0,4}}\s*(?=[^\s{_CLOSING}{_WIDE_ENDS}…])"
)

_SHORT = re.compile(r"(?<!\w)(?:[^\W\d_I]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|cf|Fig|Nr|Vol)\Z")
_NUMBER = re.compile(r"\s*\d{1,3}\Z")


def find_sentence(text: str, begin: int, start: int) -> int | None:
    """Return the start of the next sentence: after a line, or an end mark that does not belong to an abbreviation."""
    at = begin
    while end := _END.search(text, at):
        if end.end() >= start and (end["mark"] is None or _ends_sentence(text, begin, end)):
            return end.end()
        at = end.start() + 1
    return None


def _ends_sentence(text: str, begin: int, end: re.Match[str]) -> bool:
    if text[end.end()].islower():
        return False
    if end["mark"] != ".":
        return True
    sentence = text[begin : end.start()]
    return not (_NUMBER.match(sentence) or _SHORT.search(sentence[-_CONTEXT:]))
