"""Emit text word by word or sentence by sentence.

How the text is split into deltas makes no difference. White space belongs to the segment before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any
from unicodedata import category

from reactivex import Observable

from rxllm.events import ErrorEvent, Event, MessageCompleted, StepRestarted, TextCompleted, TextDelta
from rxllm.operators import _told_text as told
from rxllm.operators._event_operators import EVENTS, lift, not_an_event
from rxllm.operators._select import TextPieces
from rxllm.operators._strings import for_strings_too
from rxllm.runtime import Stream

LONGEST = 10_000
"""The maximum length of a segment, in characters."""


def words() -> Callable[[Observable[Event | str]], Stream[str]]:
    """Emit each word of the text as soon as the next word begins.

    ::

        source      --Hel--lo Wo--rld--end------|
        words()     -------"Hello "----"World"--|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Hel", "lo wo", "rld"]), "Hi").pipe(words()))
    ['Hello ', 'world']

    White space belongs to the word before it. Joining the words gives back the whole text. In Chinese, Japanese, Thai
    and similar scripts, each character is a word, along with any combining marks and punctuation after it. The last
    word of a block is emitted when the block ends, unless the stream fails. Words longer than 10,000 characters are
    split. An ``ErrorEvent`` becomes an ``on_error``. A stream of strings is one text.
    """
    segmenting: Any = for_strings_too("words", lift(lambda: _EventSegmenter("words", find_word)))
    return segmenting


def sentences() -> Callable[[Observable[Event | str]], Stream[str]]:
    """Emit each sentence as soon as the next sentence begins.

    ::

        source          --Hi. --How --are you?--end-------------|
        sentences()     --------"Hi. "----------"How are you?"--|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Dr. No is ", "here. Ru", "n!"]), "Hi").pipe(sentences()))
    ['Dr. No is here. ', 'Run!']

    White space belongs to the sentence before it. Joining the sentences gives back the whole text. A sentence ends:

    - At the end of a line.
    - After ``. ! ? …``, or a similar mark in another script, if it is followed by white space and then by anything but
      a lower-case letter. A ``.`` after an initial (``J. S. Bach``, ``e.g.``), a common abbreviation (``Dr.``) or the
      number of a list item does not end a sentence.
    - After a full-width mark used in Chinese and Japanese, such as ``。``, even if no white space follows.

    Closing quotes and brackets belong to the sentence they close. The last sentence of a block is emitted when the
    block ends, unless the stream fails. Sentences longer than 10,000 characters are split. An ``ErrorEvent`` becomes an
    ``on_error``. A stream of strings is one text.
    """
    segmenting: Any = for_strings_too("sentences", lift(lambda: _EventSegmenter("sentences", find_sentence)))
    return segmenting


_READ = frozenset({ErrorEvent, TextCompleted, TextDelta, *told.READ})


class _EventSegmenter:
    def __init__(self, name: str, find: Find) -> None:
        self._name = name
        self._pieces = TextPieces(TextDelta, TextCompleted)
        self._segmenter = Segmenter(find)
        self._told = told.ToldText(name)

    def feed(self, event: Event) -> Iterable[str]:
        if type(event) not in _READ:
            if type(event) not in EVENTS:
                raise not_an_event(self._name, event)
            return ()
        if isinstance(event, ErrorEvent):
            raise event.error
        texts = [self._told.unrepeated(piece) for piece in self._pieces(event)]
        segments = [segment for text in texts for segment in self._segmenter.feed(text)]
        if type(event) is TextCompleted or type(event) is MessageCompleted:
            segments += self._segmenter.close()
        elif type(event) is StepRestarted:
            self._segmenter.close()
        for segment in segments:
            self._told.emit(segment)
        self._told.see(event)
        return segments

    def close(self) -> Iterable[str]:
        self._told.close()
        return self._segmenter.close()


Find = Callable[[str, int, int], int | None]
"""Finds the end of a segment.

The arguments are the text, the start of the segment, and the position at which the search begins. The result is the end
of the segment, or None if the end was not found.
"""


class Segmenter:
    def __init__(self, find: Find) -> None:
        self._find = find
        self._context = ""  # the end of the pending segment
        self._pending: list[str] = []
        self._length = 0  # The length of the pending segment.
        self._has_text = False  # Whether the pending segment contains more than white space.

    def feed(self, text: str) -> list[str]:
        # Search only the end of the pending segment, to keep the cost constant.
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
        """Return the unfinished segment, and begin a new one."""
        self._context = ""
        rest = self._take()
        return [rest] if rest else []

    def _add(self, text: str) -> list[str]:
        """Add `text`, and return the segments that have reached `LONGEST` characters."""
        segments: list[str] = []
        at = 0
        while (room := LONGEST - self._length) < len(text) - at:
            self._pending.append(text[at : at + room])
            segments.append(self._take())
            at += room
        if rest := text[at:]:
            self._pending.append(rest)
            self._length += len(rest)
            self._has_text = self._has_text or not rest.isspace()
        return segments

    def _take(self) -> str:
        segment = "".join(self._pending)
        self._pending, self._length, self._has_text = [], 0, False
        return segment


_CONTEXT = 40  # no abbreviation is longer than this, even with its closing quotes and brackets


def _context_of(text: str) -> str:
    """Return as much of the end of `text` as can affect where the next cut is made."""
    words = text.rstrip()
    gap = text[len(words) :]
    words = words if len(words) <= _CONTEXT else "x" + words[-_CONTEXT:]  # "x" stands for earlier words
    return words + ("\n" if "\n" in gap else gap[:1])


_UNSPACED = "".join(
    (
        "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff",  # Thai, Lao, Burmese, Khmer.
        "\u3000-\u303f\uff01-\uff0f\uff1a-\uff20",  # Full-width punctuation.
        "\u3040-\u312f\u31a0-\u31ff",  # Kana, bopomofo.
        "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff",  # Han, half-width kana.
    )
)

_EDGE = re.compile(rf"(?<=\s)(?=\S)|(?=[{_UNSPACED}])|(?<=[{_UNSPACED}])(?=\S)")
_WORD = re.compile(r"\S+\s*|\s+(?:\S+\s*)?")
_JOINERS = "\u200d\u17d2\u1039"  # The zero-width joiner, and the Khmer and Burmese stacking signs.
_JOINED = "\u200d\u0e33\u0eb3\uff9e\uff9f"  # Letters that attach to the letter before them.
_STICKING = ("Mn", "Mc", "Me", "Pe", "Pf", "Po")
_OPENING = ("Ps", "Pi")


def find_word(text: str, begin: int, start: int) -> int | None:
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
    if text.isascii():
        return _WORD.findall(text)
    segmenter = Segmenter(find_word)
    return [*segmenter.feed(text), *segmenter.close()]


_ENDS = ".!?…؟۔।॥"  # noqa: RUF001
_WIDE_ENDS = "。！？．｡"  # noqa: RUF001
_CLOSING = "\"'”’»)\\]}」』】）》〉*_"  # noqa: RUF001

_END = re.compile(
    rf"\n[^\S\n]*(?=\S)"
    rf"|(?P<mark>[{_ENDS}])[{_CLOSING}]{{0,4}}\s+(?=\S)"
    rf"|[{_WIDE_ENDS}][{_CLOSING}]{{0,4}}\s*(?=[^\s{_CLOSING}{_WIDE_ENDS}…])"
)

_SHORT = re.compile(r"(?<!\w)(?:[^\W\d_I]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|cf|Fig|Nr|Vol)\Z")
_NUMBER = re.compile(r"(?:\A|\s)\d{1,3}\Z")


def find_sentence(text: str, begin: int, start: int) -> int | None:
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
    before = text[max(begin, end.start() - _CONTEXT) : end.start()]
    if number := _NUMBER.search(before):
        rest = text[begin : end.start() - len(number[0])]
        return bool(rest) and not rest.isspace()
    return not _SHORT.search(before)
