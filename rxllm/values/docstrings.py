"""Read the description of a tool, and those of its parameters, from a docstring.

=======  ============================================  =================================================
style    section                                       entry
=======  ============================================  =================================================
Google   ``Args:``, ``Arguments:``, ``Parameters:``    ``city: text`` or ``city (str): text``
NumPy    ``Parameters``, underlined with dashes        ``city : str``, with the text indented below
Sphinx   none                                          ``:param city: text`` or ``:param str city: text``
=======  ============================================  =================================================

The model reads the parameters' texts in the tool's schema. It reads everything else in the tool's description,
including sections such as ``Returns:`` and ``Raises:``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from textwrap import dedent

_TITLE = re.compile(r"((keyword|other) )?(args|arguments|params|parameters)(:?)\s*", re.IGNORECASE)
_UNDERLINE = re.compile(r"-{3,}\s*")
_FIELD = re.compile(r":(param|parameter|arg|argument|key|keyword|type)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:(.*)")

_GOOGLE_ENTRY = re.compile(r"^(\w+)[ \t]*(?:\((?:[^()]|\([^()]*\))*\))?:", re.MULTILINE)
_NUMPY_ENTRY = re.compile(r"^(\w+(?:[ \t]*,[ \t]*\w+)*)[ \t]*(?::.*)?$", re.MULTILINE)


def read_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the description of a function, and the descriptions of its parameters by name.

    >>> read_docstring("Get the weather.\\n\\nOnly in Europe.\\n\\nArgs:\\n    city: Its name.")
    ('Get the weather.\\n\\nOnly in Europe.', {'city': 'Its name.'})
    """
    lines = docstring.splitlines()
    kept: list[str] = []
    texts: dict[str, str] = {}
    while lines:
        length, entries = _section(lines)
        texts = {**entries, **texts}
        kept += lines[: 0 if length else 1]
        lines = lines[length or 1 :]
    return re.sub(r"\n\s*\n\s*\n", "\n\n", "\n".join(kept)).strip(), texts


def _section(lines: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Return the number of lines in the section of parameters that `lines` begin with, and the section's entries.

    The number is 0 if `lines` begin with anything else.
    """
    title, field = _TITLE.fullmatch(lines[0]), _FIELD.match(lines[0])
    if field is not None:
        rest = list(takewhile(lambda line: line[:1].isspace() and line.strip(), lines[1:]))
        entries = {} if field[1] == "type" else {field[2]: " ".join(" ".join([field[3], *rest]).split())}
        return 1 + len(rest), entries
    if title is not None and title[4]:
        block = list(takewhile(lambda line: not line.strip() or line[0].isspace(), lines[1:]))
        entries = _entries(_GOOGLE_ENTRY, block)
        return (1 + len(block) if entries else 0), entries
    if title is not None and _is_underlined(lines):
        ends = (place for place in range(2, len(lines)) if _is_underlined(lines[place:]))
        block = lines[2 : next(ends, len(lines))]
        return 2 + len(block), _entries(_NUMPY_ENTRY, block)
    return 0, {}


def _is_underlined(lines: Sequence[str]) -> bool:
    return len(lines) > 1 and bool(lines[0].strip()) and _UNDERLINE.fullmatch(lines[1]) is not None


def _entries(pattern: re.Pattern[str], block: Sequence[str]) -> dict[str, str]:
    _, *parts = pattern.split(dedent("\n".join(block)))
    pairs = zip(parts[::2], parts[1::2], strict=True)
    texts = {names: " ".join(text.split()) for names, text in pairs}
    return {name.strip(): text for names, text in texts.items() for name in names.split(",")}
