"""The pages of the docs, as tests read them."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def blocks(text: str, language: str) -> list[str]:
    """The blocks of one language, in order. A page's setup is a block in a comment, which readers do not see."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
