"""Requests that were right once: mutations of bodies, by their data and by their bytes."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Self

from hypothesis import strategies as st

import rxllm
from rxllm import (
    ChatResult,
    Fake,
    ToolCall,
)
from tests.web.ag_ui import ask, locate, pay

DEEP = '{"a":' + "[" * 600 + "]" * 600 + "}"
ATOMS: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 2**64, 10**400, -(10**400), float("nan"), float("inf"), 1e308),
    *("", "c1", "c9", "\ud800", "c\udfff1", "\0", "a" * 5000, "😀", "__proto__", "\u2028", "{}", "[", DEEP),
    *("data:image/png;base64,AA", "data:,x", "file:///etc/passwd", "https://[", "https://x", "http://\ud800"),
    *([], {}, [[]], [None], {"": {}}, {"\ud800": 1}, json.loads("[" * 90 + "]" * 90)),
]
ARGUMENTS = [DEEP, "{}", "", "[]", '{"a":', '{"a":1e999}', '{"a":"\\ud800"}', '{"a":"\ud800"}', "{" * 2000, '{"a":NaN}']
TOKENS = [
    *(b"\\ud83d", b"\\u0000", b"1e999", b"NaN", b"9" * 400, b"9" * 5000, b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *(b"[", b"]", b"{", b"}", b'"', b"\\", b",", b":", b"null", b"true", b"[" * 200, b'{"a":' * 200, b"\0", b"//"),
]


class Mutations:
    """Mutated bodies of a reader, the same ones for each `seed`; `bodies` are right."""

    def __init__(self, bodies: list[dict[str, Any]], seed: int) -> None:
        self._bodies = bodies
        self._random = random.Random(seed)
        places = [place for body in bodies for place in _places(body)]
        self._words = sorted({key for _, key in places if isinstance(key, str)})
        self._parts = [container[key] for container, key in places]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        pick = self._random
        body = dict[str, Any](body=copy.deepcopy(pick.choice(self._bodies)))
        for _ in range(pick.choice((0, 1, 1, 1, 2, 3))):
            if places := [*_places(body)]:
                pick.choice(self._on_data)(self, *pick.choice(places))
        text = json.dumps(body.get("body", body), ensure_ascii=pick.random() < 0.5)
        raw = text.encode(errors="surrogatepass")
        if pick.random() < 0.3:
            raw = pick.choice(self._on_bytes)(self, raw)
        return raw

    def _replace(self, container: Any, key: Any) -> None:
        kind = int | float if isinstance(container[key], int | float) else type(container[key])
        like = [atom for atom in ATOMS if isinstance(atom, kind)]  # which gets further than any other
        if kind is str and container[key].startswith("{"):
            like = ARGUMENTS
        container[key] = copy.deepcopy(
            self._random.choice(self._random.choice((like, [*ATOMS, *self._words])) or ATOMS)
        )

    def _transplant(self, container: Any, key: Any) -> None:
        container[key] = copy.deepcopy(self._random.choice(self._parts))

    def _delete(self, container: Any, key: Any) -> None:
        del container[key]

    def _rename(self, container: Any, key: Any) -> None:
        if isinstance(container, dict):
            name = self._random.choice((*self._words, "\ud800", "", "a" * 300))
            container[name] = container.pop(key)

    def _wrap(self, container: Any, key: Any) -> None:
        container[key] = self._random.choice(([container[key]], {"a": container[key]}, str(container[key])))

    def _repeat(self, container: Any, key: Any) -> None:
        if isinstance(container, list):
            container[key:key] = [container[key]] * self._random.choice((1, 2, 30))

    _on_data: tuple[Callable[[Any, Any, Any], None], ...] = (
        *(_replace, _replace, _replace, _transplant, _transplant, _delete, _rename, _wrap, _repeat),
    )

    def _flip(self, raw: bytes) -> bytes:
        at = self._random.randrange(len(raw))
        return raw[:at] + bytes([self._random.randrange(256)]) + raw[at + 1 :]

    def _insert(self, raw: bytes) -> bytes:
        at = self._random.randrange(len(raw))
        return raw[:at] + self._random.choice(TOKENS) + raw[at:]

    def _cut(self, raw: bytes) -> bytes:
        begin, end = sorted(self._random.randrange(len(raw)) for _ in range(2))
        return self._random.choice((raw[:begin], raw[:begin] + raw[end:]))

    _on_bytes: tuple[Callable[[Any, bytes], bytes], ...] = (_flip, _insert, _cut)


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and the key of each value in `data`."""
    if isinstance(data, dict | list):
        for key in list(data) if isinstance(data, dict) else range(len(data)):
            yield data, key
            yield from _places(data[key])


PNG = "data:image/png;base64," + base64.b64encode(b"png").decode()


def halted(*calls: ToolCall) -> ChatResult:
    return rxllm.chat(Fake([*calls], "Done."), "Hi", tools=[pay, locate, ask]).run()


hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
