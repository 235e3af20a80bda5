"""A notebook as a page in Markdown, with the outputs that it was saved with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def notebook_page(source: Path, folder: Path) -> str:
    """Return the page of a notebook; its pictures are written to `folder`, beside the page."""
    cells = json.loads(source.read_text())["cells"]
    parts: list[str] = []
    for number, cell in enumerate(cells):
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for place, output in enumerate(cell.get("outputs", ())):
            parts.append(_output(output, folder, f"{source.stem}-{number}-{place}.svg"))
    return "\n\n".join(parts)


def _output(output: dict[str, Any], folder: Path, picture: str) -> str:
    """The richest form of an output that a page can show; a live widget has only its text."""
    kinds = {"image/svg+xml", "text/html", "text/plain"} & {*output.get("data", {})}
    data = {kind: "".join(output["data"][kind]) for kind in kinds}
    if "image/svg+xml" in data:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / picture).write_text(data["image/svg+xml"])
        return f"![{_alternative(data['image/svg+xml'])}]({picture})"
    if "text/html" in data:
        html = re.sub(r"\n\s*\n", "\n", data["text/html"])
        return f'<div class="output">\n{html}\n</div>'
    text = data.get("text/plain") or "".join(output.get("text", ()))
    return f"```text\n{text.rstrip()}\n```"


def _alternative(svg: str) -> str:
    """The title of a picture, or else the words in it. The numbers at the axes of a plot are left out."""
    title = re.search(r"<title>(.*?)</title>", svg)
    texts = re.findall(r"<text[^>]*>([^<]*[^\W\d][^<]*)</text>", svg)
    return title[1] if title else f"A plot: {', '.join(texts)}"
