"""The pages of the reference: a page for each public module, and one that lists every name of ``rxllm``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from exports import Entry, Exports, first_sentence, purposes

_READING = """Each picture is what the operator did, in virtual time: its source is above the box, and its output below.
[Operators in pictures](operators.md#in-pictures) explains the rows."""


_SCREENS = """\
![Three models race: the first model to send a token wins, and the other models' sockets close.](pictures/hero.svg)

<div class="gallery" markdown>

In a notebook, `rxllm.show(stream)` is a live card.
![A card with a tool call and its answer](pictures/card.svg)

In a terminal, it is the same card.
![The same card in a terminal](pictures/terminal.svg)

In a browser, [the web](web.md) connects answers, approvals, stop and reload.
![A browser chat that is waiting for an approval](pictures/web_chat.png)

</div>"""

DRAWN = {path.stem for path in (Path(__file__).parents[1] / "marbles").glob("*.svg")}
_ENOUGH = 3
"""A heading for a file has at least this many names below it."""


def pages(exports: Exports) -> dict[str, str]:
    """Return the text of each page by its path."""
    return {"reference/index.md": _index(exports), **{page_of(room): _page(exports, room) for room in exports.rooms}}


def page_of(room: str) -> str:
    """Return the page of a module: ``reference/testing.loopback.md``."""
    return f"reference/{room.removeprefix('rxllm.')}.md"


def gallery(exports: Exports) -> str:
    """Return the page with the picture of every operator, by purpose, and of functions of streams."""
    parts = ["---\nhide: [navigation, toc]\n---", "# Pictures", _SCREENS, "## Operators", _READING]
    operators = exports.entries_of("rxllm.operators")
    names = {entry.item.name for entry in operators}
    functions = [entry for entry in exports.entries_of("rxllm") if entry.item.name in DRAWN - names]
    for section, entries in [*_sections(exports, operators), ("Functions of streams", functions)]:
        parts += [f"### {section}", '<div class="gallery" markdown>', *map(_figure, entries), "</div>"]
    return "\n\n".join(parts)


def _index(exports: Exports) -> str:
    """The facade: its docstring, its names by the heading under which they have their entries, and all modules."""
    titles = sorted((title, room) for room, title in exports.titles.items())
    rows = [(f"[`{title}`][{title}]", first_sentence(exports.modules[room])) for title, room in titles]
    listed = _links(exports, exports.entries_of("rxllm"))
    parts = ["# Reference { #rxllm }", _directive("rxllm"), "## Names of rxllm", *listed]
    return "\n\n".join([*parts, "## Modules", _table("module", rows)])


def _page(exports: Exports, room: str) -> str:
    """A room: its docstring, the entries of what it defines, and links to what it passes on."""
    title = exports.titles[room]
    parts = [f"# {title} {{ #{title} }}", _directive(title)]
    for section, entries in _sections(exports, [entry for entry in exports.entries if entry.room == room]):
        parts += [f"## {section}"] if section else []
        parts += [_directive(entry.path, heading=3) for entry in entries]
    others = [entry for entry in exports.entries_of(room) if entry.room != room]
    return "\n\n".join([*parts, "## Names of other modules", *_links(exports, others)] if others else parts)


def _sections(exports: Exports, entries: list[Entry]) -> list[tuple[str, list[Entry]]]:
    """The entries by module and heading, in the order of the module's table; a file with few names has no heading."""
    sizes = Counter((entry.room, entry.section) for entry in entries)
    sections: dict[tuple[str, int, str], list[Entry]] = {}
    for entry in entries:
        order = [*purposes(exports.modules[entry.room])]
        place = order.index(entry.section) if entry.section in order else len(order)
        shown = entry.section in order or sizes[entry.room, entry.section] >= _ENOUGH
        sections.setdefault((entry.room, place * shown, entry.section * shown), []).append(entry)
    return [(key[2], sections[key]) for key in sorted(sections)]


def _links(exports: Exports, entries: list[Entry]) -> list[str]:
    parts: list[str] = []
    for section, group in _sections(exports, entries):
        rows = [(f"[`{entry.path}`][{entry.path}]", first_sentence(entry.item)) for entry in group]
        parts += [f"### {section or exports.titles[group[0].room]}", _table("name", rows)]
    return parts


def _table(heading: str, rows: list[tuple[str, str]]) -> str:
    lines = (f"| {link} | {sentence.replace('``', '`').replace('|', '&#124;')} |" for link, sentence in rows)
    return "\n".join([f"| {heading} | what it is |", "|---|---|", *lines])


def _directive(path: str, heading: int = 0) -> str:
    """What mkdocstrings replaces: the entry of an object under a heading, or the docstring of a module alone."""
    alone = ["members: false", "show_root_heading: false", "show_root_toc_entry: false"]
    options = [f"heading_level: {heading}"] if heading else alone
    return "\n".join([f"::: {path}", "    options:", *(f"      {option}" for option in options)])


def _figure(entry: Entry) -> str:
    name = entry.item.name
    sentence = first_sentence(entry.item).replace("``", "`")
    return f"[`{name}`][{entry.path}]: {sentence}\n![{name}](marbles/{name}.svg)"
