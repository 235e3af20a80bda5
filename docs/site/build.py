"""Build the site: ``python docs/site/build.py`` writes it to ``build/site``, and fails at the first broken link.

``docs/index.md`` is the plan: its headings are the chapters, and its links the pages. The reference follows
``__all__``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import griffe
from exports import Exports
from notebook import notebook_page
from reference import gallery, page_of, pages

ROOT = Path(__file__).parent.parent.parent
OUT = ROOT / "build" / "site"
STAGED = ROOT / "build" / "pages"
"""The pages as Zensical reads them, in Markdown."""

_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(#[^)]*)?(?=\))")
_FENCE = re.compile(r"(^ *```+.*?^ *```+$)", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def main() -> int:
    """Write the pages and the configuration, build, and check that every public name has its entry."""
    exports = Exports(griffe.load("rxllm", search_paths=[ROOT]))
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.rmtree(OUT, ignore_errors=True)
    chapters = stage(exports)
    settings = (Path(__file__).parent / "zensical.toml").read_text()
    config = ROOT / "build" / "zensical.toml"
    config.write_text(settings.replace("nav = []", f"nav = {_navigation(chapters)}") + _sections(chapters))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(config)]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}  # the extension of griffe is beside this file
    built = subprocess.run(command, env=environment)
    if built.returncode:
        return built.returncode
    lacking = without_entry(exports)
    if lacking:
        print(f"public names without an entry in the reference: {', '.join(lacking)}", file=sys.stderr)
    return bool(lacking)


def stage(exports: Exports) -> dict[str, list[str]]:
    """Write every page below `STAGED`; return the chapters with their pages, in order."""
    chapters = _chapters()
    for source in [ROOT / "docs" / "index.md", *(source for sources in chapters.values() for source in sources)]:
        _write(site_path(source), _with_site_links(source, _markdown(source), exports))
    for path, text in pages(exports).items():
        _write(path, text)
    _write("gallery.md", gallery(exports))
    for folder in ("marbles", "pictures"):
        shutil.copytree(ROOT / "docs" / folder, STAGED / folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copy(Path(__file__).parent / "site.css", STAGED)
    found = {chapter: [site_path(source) for source in sources] for chapter, sources in chapters.items()}
    modules = [page_of(room) for room in sorted(exports.rooms, key=exports.titles.__getitem__)]
    return {**found, "Pictures": ["gallery.md"], "Reference": ["reference/index.md", *modules]}


def site_path(source: Path) -> str:
    """Return the page that shows a file of the repository."""
    place = source.relative_to(ROOT)
    parts = place.parts[1:] if place.parts[0] == "docs" else place.parts
    page = Path(*parts)
    return str(page if page.suffix in {".svg", ".png"} else page.with_suffix(".md"))


def without_entry(exports: Exports) -> list[str]:
    """Return the public paths that no page of the built reference has an anchor for."""
    built = "".join(page.read_text() for page in OUT.glob("reference/**/*.html"))
    return sorted({entry.path for entry in exports.entries} - {*re.findall(r'id="([^"]+)"', built)})


def _chapters() -> dict[str, list[Path]]:
    """The headings of ``docs/index.md``, each with the files that it links to and no earlier heading did."""
    chapters: dict[str, list[Path]] = {}
    seen: set[Path] = set()
    for part in re.split(r"^## ", (ROOT / "docs" / "index.md").read_text(), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        found = [(ROOT / "docs" / link).resolve() for link, _ in _LINK.findall(text)]
        chapters[heading] = [path for path in dict.fromkeys(found) if path not in seen]
        seen.update(found)
    return chapters


def _markdown(source: Path) -> str:
    """A file as a page: notebooks with their outputs, programs as code."""
    if source.suffix == ".ipynb":
        return notebook_page(source, STAGED / "notebooks")
    if source.suffix == ".md":
        return _COMMENT.sub("", source.read_text())
    files = sorted(source.rglob("*.*")) if source.is_dir() else [source]
    shown = [path for path in files if path.suffix in {".py", ".toml", ".md", ".html"}]
    folder = source if source.is_dir() else source.parent
    parts = [f"# {source.name}"]
    for path in shown:
        parts += [f"## {path.relative_to(folder)}"] * (len(shown) > 1)
        parts += [f"`````{path.suffix.removeprefix('.')}\n{path.read_text().rstrip()}\n`````"]
    return "\n\n".join(parts)


def _with_site_links(source: Path, text: str, exports: Exports) -> str:
    """The text of a page with its links to files of the repository turned into links to their pages."""
    up = "../" * site_path(source).count("/")

    def linked(found: re.Match[str]) -> str:
        target = (source.parent / found[1]).resolve()
        if not target.is_relative_to(ROOT) or not target.exists():
            return found[0]
        return f"{up}{_module_page(target, exports) or site_path(target)}{found[2] or ''}"

    parts = _FENCE.split(text)
    parts[::2] = [_LINK.sub(linked, part) for part in parts[::2]]
    return "".join(parts)


def _module_page(target: Path, exports: Exports) -> str | None:
    """The page of the innermost room around a file of the package."""
    module = ".".join(target.relative_to(ROOT).with_suffix("").parts)
    rooms = [room for room in exports.rooms if f"{module}.".startswith(f"{room}.")]
    return page_of(max(rooms, key=len)) if rooms else None


def _navigation(chapters: dict[str, list[str]]) -> str:
    lines = (f'  {{ "{chapter}" = {paths} }},' for chapter, paths in chapters.items())
    return "\n".join(["[", '  "index.md",', *lines, "]"])


def _sections(chapters: dict[str, list[str]]) -> str:
    """The sections of ``llms.txt``, which the last table of the settings holds."""
    return "\n".join(f'"{chapter}" = {paths}' for chapter, paths in chapters.items())


def _write(path: str, text: str) -> None:
    target = STAGED / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
