"""Docstrings to Markdown: doctests, literal blocks, tables and terms become what a page shows; names become links."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import griffe
from exports import Exports

_RULE = re.compile(r"^=+(?: +=+)+$")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


class Markdown(griffe.Extension):
    """Rewrite the docstrings of a package when mkdocstrings has loaded it."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        links = Exports(pkg).links()
        for item in [*_objects(pkg)]:
            if _is_stored_argument(item):
                item.parent.del_member(item.name)  # the signature of the class has it
            elif item.docstring:
                own = _own_names(item)
                text = to_markdown(item.docstring.value)
                item.docstring.value = _with_links(
                    text, {name: path for name, path in links.items() if name not in own}
                )


def to_markdown(docstring: str) -> str:
    """Return the docstring with its blocks in Markdown."""
    return "\n\n".join(_blocks(textwrap.dedent(docstring).split("\n")))


def _blocks(lines: list[str]) -> Iterator[str]:
    """Each block of a docstring: a paragraph, or a paragraph that ends with ``::`` and the literal block after it."""
    at = 0
    while at < len(lines):
        if not lines[at].strip():
            at += 1
            continue
        end = _paragraph_end(lines, at)
        paragraph = lines[at:end]
        at = end
        if _RULE.match(paragraph[0].strip()):
            yield _table(paragraph)
        elif paragraph[0].lstrip().startswith(">>>"):
            yield _fence("pycon", paragraph)
        elif paragraph[-1].endswith("::"):
            paragraph[-1] = paragraph[-1].removesuffix("::").rstrip()
            if any(paragraph):
                paragraph[-1] += ":"
                yield _paragraph(paragraph)
            end = _literal_end(lines, at, _indent(paragraph[0]))
            code = textwrap.dedent("\n".join(lines[at:end])).strip("\n")
            yield _fence("python" if _is_python(code) else "text", code.split("\n"))
            at = end
        else:
            yield _paragraph(paragraph)


def _paragraph_end(lines: list[str], at: int) -> int:
    while at < len(lines) and lines[at].strip():
        at += 1
    return at


def _literal_end(lines: list[str], at: int, indent: int) -> int:
    while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > indent):
        at += 1
    return at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _fence(language: str, lines: list[str]) -> str:
    margin = " " * _indent(lines[0])
    return "\n".join([f"{margin}```{language}", *lines, f"{margin}```"])


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def _paragraph(lines: list[str]) -> str:
    """A paragraph; a line with indented lines below it is a term, and each of those lines is an item of its list."""
    if _ITEM.match(lines[0].lstrip()) or all(_indent(line) == _indent(lines[0]) for line in lines):
        return "\n".join(lines)
    margin, shown = _indent(lines[0]), list[str]()
    for line in lines:
        shown += [f"- {line.strip()}"] if _indent(line) > margin else ["", f"**{line.strip()}**", ""]
    return "\n".join(shown)


def _table(lines: list[str]) -> str:
    """A simple table of reStructuredText; a row whose first cell is empty continues the one above."""
    width = lines[0].index(" =") + 1
    rows = list[list[str]]()
    for line in lines:
        first, rest = line[:width].strip(), line[width:].strip()
        if _RULE.match(line):
            continue
        if first or not rows:
            rows.append([first, rest])
        else:
            rows[-1][1] += f" {rest}"
    head = rows.pop(0) if _RULE.match(lines[2]) and len(lines) > 3 else ["", ""]
    return "\n".join([f"| {first} | {rest} |" for first, rest in (head, ["---", "---"], *rows)])


def _with_links(text: str, links: dict[str, str]) -> str:
    """The text with a link to the entry of each name that stands in single backticks outside a fence."""

    def linked(found: re.Match[str]) -> str:
        path = links.get(found[1])
        return f"[`{found[1]}`][{path}]" if path else found[0]

    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [re.sub(r"(?<![`\[])`([\w.]+)`(?!`)", linked, part) for part in parts[::2]]
    return "".join(parts)


def _is_stored_argument(item: griffe.Object) -> bool:
    """Whether an attribute is ``self.name = name``."""
    return item.is_attribute and not item.docstring and not item.annotation and str(item.value) == item.name


def _own_names(item: griffe.Object) -> set[str]:
    """The arguments of a function, and the members of its class: a docstring that names one means that."""
    classes = [found for found in (item, item.parent) if found and found.is_class]
    members = {name for found in classes for name in found.members}
    return members | {parameter.name for parameter in getattr(item, "parameters", ())}


def _objects(item: griffe.Object) -> Iterator[griffe.Object]:
    yield item
    for member in item.members.values():
        if not member.is_alias:
            yield from _objects(member)
