"""What is public: every name in the ``__all__`` of a module without an underscore, and where its entry stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import griffe


@dataclass(frozen=True)
class Entry:
    """A public object: its shortest public path, the module on whose page it stands, and the heading there."""

    path: str
    room: str
    section: str
    item: griffe.Object


class Exports:
    """What a package exports, as griffe has loaded it."""

    def __init__(self, package: griffe.Module) -> None:
        self.modules = {module.path: module for module in _modules(package)}
        """The modules without an underscore in their path."""
        named = {_target(package, str(name)).path: f"{package.path}.{name}" for name in package.exports or ()}
        self.names = {path: _names(module, path in named) for path, module in self.modules.items()}
        """The public names of each module, by its path."""
        exporters: dict[str, list[str]] = {}
        items: dict[str, griffe.Object] = {}
        for path, module in self.modules.items():
            for name in self.names[path]:
                item = _target(module, name)
                if not item.is_module:
                    items[item.path] = item
                    exporters.setdefault(item.path, []).append(f"{path}.{name}")
        self._entries = {path: self._entry(item, exporters[path]) for path, item in items.items()}
        self.entries = list(self._entries.values())
        """The entry of each public object; modules have pages instead."""
        rooms = {entry.room for entry in self.entries}
        self.rooms = sorted(rooms | {path for path, names in self.names.items() if names and path.count(".") == 1})
        """The modules that have a page."""
        self.titles = {room: named.get(room, room) for room in self.rooms}
        """The path of each of these as programs write it: ``rxllm.keys``."""

    def entries_of(self, room: str) -> list[Entry]:
        """Return the entries of the names that a module exports."""
        found = (self._entries.get(_target(self.modules[room], name).path) for name in self.names[room])
        return [entry for entry in found if entry]

    def links(self) -> dict[str, str]:
        """Return the path of an entry or a page by what a docstring may call it: its name, or any public path.

        Plain lowercase words, as `text` or `usage`, are left out: they are mostly the names of arguments.
        """
        links = {path: title for room, title in self.titles.items() for path in (room, title)}
        for room in self.modules:
            for name, entry in ((entry.item.name, entry) for entry in self.entries_of(room)):
                links[f"{room.replace('rxllm.operators', 'ops')}.{name}"] = links[f"{room}.{name}"] = entry.path
                if not re.fullmatch(r"[a-z]+", name):
                    links.setdefault(name, entry.path)
        return links

    def _entry(self, item: griffe.Object, exported: list[str]) -> Entry:
        """An object stands on the page of the module that defines it, under its shortest path."""
        path = min(exported, key=lambda path: (path.count("."), path))
        around = [module for module in self.modules if item.path.startswith(f"{module}.") and "." in module]
        exporting = [module for module in around if any(path.rpartition(".")[0] == module for path in exported)]
        room = self.modules[min(exporting or around, key=len)]
        return Entry(path, room.path, _section(room, item), item)


def first_sentence(item: griffe.Object) -> str:
    """Return the first sentence of a docstring, in one line; empty without a docstring."""
    text = item.docstring.value if item.docstring else ""
    paragraph = " ".join(text.partition("\n\n")[0].split()).removesuffix("::")
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for name, member in sorted(module.members.items()):
        if not member.is_alias and member.is_module and not name.startswith("_"):
            yield from _modules(member)


def _names(module: griffe.Module, exported: bool) -> list[str]:
    """The names in ``__all__``; without one, the functions and classes of a module that is itself exported."""
    if module.exports is not None or not exported:
        return [str(name) for name in module.exports or ()]
    own = (item for item in module.members.values() if not item.is_alias and (item.is_function or item.is_class))
    return [item.name for item in own if item.is_public]


def _target(module: griffe.Module, name: str) -> griffe.Object:
    item = module.members[name]
    return item.final_target if item.is_alias else item


def purposes(room: griffe.Module) -> dict[str, list[str]]:
    """Return the purposes in the table of a module's docstring, each with the words beside it."""
    docstring = room.docstring.value if room.docstring else ""
    rows = re.findall(r"^(\w[\w ]*?)  +(\S.*(?:\n {4,}\S.*)*)$", docstring, re.MULTILINE)
    return {purpose.capitalize(): re.findall(r"\w+", text) for purpose, text in rows}


def _section(room: griffe.Module, item: griffe.Object) -> str:
    """The heading: the purpose in the table of the room's docstring, or the label of the file up to a colon."""
    for purpose, words in purposes(room).items():
        if item.name in words:
            return purpose
    return "" if item.module.path == room.path else first_sentence(item.module).rstrip(".").partition(": ")[0]
