"""A text that is cut into words or sentences while it comes.

Where a cut falls depends on the text alone, and not on the pieces that it came in. White space belongs to what is
before it; at the very beginning, to what is after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from unicodedata import category

from rxllm.events import ErrorEvent, Event, MessageCompleted, StepRestarted, TextCompleted, TextDelta
from rxllm.operators._shared.only_events import EVENTS, no_event
from rxllm.operators._shared.pick import Pieces

Find = Callable[[str, int, int], int | None]
"""``find(text, begin, start)``: the first cut of `text` from `start` on, in a piece that begins at `begin`."""

_UNSPACED = "".join(
    (
        "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff",  # Thai, Lao, Burmese, Khmer
        "\u3000-\u303f\uff01-\uff0f\uff1a-\uff20",  # punctuation of full width
        "\u3040-\u312f\u31a0-\u31ff",  # kana, bopomofo
        "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff",  # Han, half-width kana
    )
)
_EDGE = re.compile(rf"(?<=\s)(?=\S)|(?=[{_UNSPACED}])|(?<=[{_UNSPACED}])(?=\S)")
_WORD = re.compile(r"\s*\S+\s*|\s+")
_JOINERS = "\u200d\u17d2\u1039"  # zero-width joiner; what stacks the next letter in Khmer and Burmese
_JOINED = "\u200d\u0e33\u0eb3\uff9e\uff9f"  # no marks to Unicode, but written with what is before them
_STICKING = ("Mn", "Mc", "Me", "Pe", "Pf", "Po")
_OPENING = ("Ps", "Pi")

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
_CONTEXT = 40  # more than the longest abbreviation, its closing marks and a number


def split_words(text: str) -> list[str]:
    """The words of `text`; joined, they are the text."""
    if text.isascii():
        return _WORD.findall(text)
    cutter = Cutter(find_word)
    return [*cutter.feed(text), *cutter.close()]


def find_word(text: str, begin: int, start: int) -> int | None:
    """Words begin after white space; where a script has none, every character is one, with its marks."""
    while edge := _EDGE.search(text, start):
        at = edge.start()
        if at > begin and (text[at - 1].isspace() or _parts(text[at - 1], text[at])):
            return at
        start = at + 1
    return None


def _parts(before: str, after: str) -> bool:
    if before in _JOINERS or after in _JOINED:
        return False
    return category(after) not in _STICKING and category(before) not in _OPENING


def find_sentence(text: str, begin: int, start: int) -> int | None:
    """Sentences end with a line, with a mark of their script, or with a ``.`` that is not an abbreviation's."""
    at = begin
    while end := _END.search(text, at):
        if end.end() >= start and (end["mark"] is None or _ends(text, begin, end)):
            return end.end()
        at = end.start() + 1
    return None


def _ends(text: str, begin: int, end: re.Match[str]) -> bool:
    if text[end.end()].islower():
        return False
    if end["mark"] != ".":
        return True
    said = text[begin : end.start()]
    return not (_NUMBER.match(said) or _SHORT.search(said[-_CONTEXT:]))


class Cutter:
    """Text in, finished pieces out; all that comes out, joined, is all that went in."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._drop()

    def feed(self, text: str) -> list[str]:
        # What is held is looked at again only in so far as a cut may depend on it, so that a long piece costs no more.
        seen = len(self._context)
        text = self._context + text
        made: list[str] = []
        begin, taken, start = 0, seen, seen
        while (cut := self._find(text, begin, start)) is not None:
            self._hold(text[taken:cut])
            taken, start = cut, cut + 1
            if self._solid:
                made.append("".join(self._held))
                self._held, self._solid, begin = [], False, cut
        self._hold(text[taken:])
        self._context = _shadow(text[begin:])
        return made

    def close(self) -> list[str]:
        """What is left."""
        rest = "".join(self._held)
        self._drop()
        return [rest] if rest else []

    def _hold(self, text: str) -> None:
        if text:
            self._held.append(text)
            self._solid = self._solid or not text.isspace()

    def _drop(self) -> None:
        self._held: list[str] = []
        self._solid = False  # whether there is more than white space in what is held
        self._context = ""


def _shadow(text: str) -> str:
    """As much of the end of `text` as a cut may depend on: what was last said, and whether a line has ended since."""
    said = text.rstrip()
    gap = text[len(said) :]
    said = said if len(said) <= _CONTEXT else "x" + said[-_CONTEXT:]  # it is not the beginning
    return said + ("\n" if "\n" in gap else gap[:1])


_READ = frozenset({ErrorEvent, MessageCompleted, StepRestarted, TextCompleted, TextDelta})


class Cuts:
    """The pieces of the text in events: each block is cut for itself."""

    def __init__(self, name: str, find: Find) -> None:
        self._name = name
        self._pieces = Pieces(TextDelta, TextCompleted)
        self._cutter = Cutter(find)

    def feed(self, event: Event) -> Iterable[str]:
        if type(event) not in _READ:
            if type(event) not in EVENTS:
                raise no_event(self._name, event)
            return ()
        if isinstance(event, ErrorEvent):
            raise event.error
        made = [piece for text in self._pieces(event) for piece in self._cutter.feed(text)]
        if type(event) is TextCompleted or type(event) is MessageCompleted:
            made += self._cutter.close()
        elif isinstance(event, StepRestarted):
            self._cutter.close()
        return made

    def close(self) -> Iterable[str]:
        return self._cutter.close()
