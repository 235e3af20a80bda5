"""Write pictures and cards to files."""

from os import PathLike
from pathlib import Path

HTML_HEAD = '<!doctype html>\n<meta charset="utf-8">\n<meta name="color-scheme" content="light dark">\n'


def export(text: str, path: str | PathLike[str] | None, *, head: str = "") -> str | None:
    """Return `text`, or write `head` and `text` to `path` if a path is given."""
    if path is None:
        return text
    Path(path).write_text(head + text, encoding="utf-8")
    return None
