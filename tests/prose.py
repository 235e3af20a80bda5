"""Prose of the project: ``python -m tests.prose`` counts habits that stop a reader, and draws samples for a reader.

Prose is the docstrings, comments and messages of ``rxllm/``, and the pages without their code. ``--list HABIT`` shows
where a habit stands; ``--samples 60 --seed 7`` prints so many pieces of prose, drawn at random, and their places.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Piece(NamedTuple):
    """A piece of prose; `kind` is ``docstring``, ``comment``, ``message`` or ``page``."""

    kind: str
    path: str
    line: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


HABITS: dict[str, tuple[str, tuple[str, ...]]] = {
    "question as a label": (r"\A(What|How|Where|Which|When|Whose)\b(?!.*\?)", ("docstring",)),
    "begins in mid-sentence": (
        r"\A(of|as|whose|such|that|which|until|so that|by which|for which|and|or|but|because)\b",
        ("comment",),
    ),
    "tell, say, hear": (
        r"\b(tells?|told|says?|said|hears?|heard)\b",
        ("docstring", "comment", "message", "page"),
    ),
    "one, another, others without a noun": (
        r"\bof (one|another|others|these)\b(?= *[.,;:)]| (that|which|who|is|are|in|with|and|or)\b)",
        ("docstring", "comment", "message", "page"),
    ),
    "that of": (r"\b(that|those) (of|for)\b", ("docstring", "comment", "message", "page")),
    "whoever, nobody": (r"\b(whoever|nobody|anybody|everybody)\b", ("docstring", "comment", "message", "page")),
    "goes on": (r"\b(go|goes|went|going|gone) on\b", ("docstring", "comment", "message", "page")),
    "come": (r"\b(come|comes|came|coming)\b", ("docstring", "comment", "message", "page")),
    "so many": (r"\b(so|as) (many|long)\b(?! as)", ("docstring", "comment", "message", "page")),
    "anew": (r"\b(anew|afresh|beforehand|meanwhile)\b", ("docstring", "comment", "message", "page")),
}
"""Each habit as an expression, and the kinds of prose in which it is counted."""


def pieces_of_code(path: Path) -> Iterator[Piece]:
    """Yield the docstrings, comments and messages of a file."""
    name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    alone: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            alone.add(id(node.value))
            yield Piece("docstring", name, node.lineno, without_code(node.value.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            alone.update(map(id, node.values))
        message = _message(node)
        if message is not None and id(node) not in alone and len(re.findall(r"[A-Za-z]+ ", message)) >= 3:
            yield Piece("message", name, node.lineno, message)
    yield from _comments(name, text)


def _message(node: ast.AST) -> str | None:
    """Return a string's text; what an f-string computes stands in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_message(part) or "" for part in parts)
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case _:
            return None


def _comments(name: str, text: str) -> Iterator[Piece]:
    """Yield the comments of a file; those on lines that follow each other are one."""
    first = last = 0
    lines: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("# pyright", "# noqa", "# type:")):
            continue
        if token.start[0] != last + 1 and lines:
            yield Piece("comment", name, first, " ".join(lines))
            lines = []
        if not lines:
            first = token.start[0]
        lines.append(token.string.lstrip("# "))
        last = token.start[0]
    if lines:
        yield Piece("comment", name, first, " ".join(lines))


def pieces_of_page(path: Path) -> Iterator[Piece]:
    """Yield the paragraphs of a page."""
    name = str(path.relative_to(ROOT))
    line = 1
    for block in re.split(r"(?s)(```.*?```|<!--.*?-->)", path.read_text(encoding="utf-8")):
        if not block.startswith(("```", "<!--")):
            at = line
            for paragraph in re.split(r"(\n\s*\n)", block):
                if paragraph.strip():
                    yield Piece("page", name, at, paragraph.strip())
                at += paragraph.count("\n")
        line += block.count("\n")


def without_code(docstring: str) -> str:
    """Return a docstring without its examples and pictures."""
    kept, is_picture = [], False
    for line in docstring.strip().splitlines():
        if line.strip() == "::":
            is_picture = True
        elif is_picture and line.strip() and not line.startswith("        "):
            is_picture = False
        if not is_picture and not line.lstrip().startswith((">>>", "...")):
            kept.append(line.strip())
    return "\n".join(kept)


def prose() -> list[Piece]:
    """Return all pieces, in the order of the files."""
    code = sorted(path for path in (ROOT / "rxllm").rglob("*.py") if "plugin" not in path.parts)
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        *(piece for path in code for piece in pieces_of_code(path)),
        *(piece for path in pages for piece in pieces_of_page(path)),
    ]


def found(habit: str, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, str]]:
    """Yield each place of a habit, with the words around it."""
    expression, kinds = HABITS[habit]
    for piece in pieces:
        if piece.kind in kinds:
            for match in re.finditer(expression, piece.text):
                words = piece.text[max(0, match.start() - 40) : match.end() + 40]
                yield piece, " ".join(words.split())


def counts(pieces: Iterable[Piece]) -> dict[str, Counter[str]]:
    """Return how often each habit occurs, by room (the first folder) or page."""
    pieces = list(pieces)
    return {habit: Counter(room_of(piece) for piece, _ in found(habit, pieces)) for habit in HABITS}


def room_of(piece: Piece) -> str:
    first, *rest = Path(piece.path).parts
    return rest[0].removesuffix(".py") if first == "rxllm" and rest else first


def samples(pieces: list[Piece], number: int, seed: int) -> list[Piece]:
    """Return pieces of at least five words, drawn at random without repetition."""
    candidates = [piece for piece in pieces if len(piece.text.split()) >= 5]
    return random.Random(seed).sample(candidates, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", metavar="HABIT", choices=HABITS)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    pieces = prose()
    if arguments.list:
        for piece, words in found(arguments.list, pieces):
            print(f"{piece.place}: {words}")
    elif arguments.samples:
        for number, piece in enumerate(samples(pieces, arguments.samples, arguments.seed), 1):
            print(f"{number}. {piece.kind} {piece.place}\n{piece.text}\n")
    else:
        for habit, by_room in counts(pieces).items():
            print(f"{habit:38}{by_room.total():6}   {', '.join(f'{n} {room}' for room, n in by_room.most_common(8))}")


if __name__ == "__main__":
    main()
