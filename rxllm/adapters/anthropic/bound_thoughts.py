"""The prefix ledger: what of a request is the same as when the model had its earlier thoughts.

The models that `CHECKS` matches bind a thought to what comes before it, and refuse the request if that has changed:
https://platform.claude.com/docs/en/build-with-claude/extended-thinking. So each answer's message remembers digests of
the body that it answers, in ``metadata["anthropic_prefix"]``. Later requests are compared with them, and thoughts that
the server would refuse are left out of the body. The thread keeps them. A thought without digests is sent as it is.

==============================  ====================================================================================
part of the body                rule
==============================  ====================================================================================
``system``, ``tools``           must be the same; cache marks and the order of the tools do not matter
messages before the thought's   must be the same; cache marks and thoughts do not matter
the thought before it           must be the same, unless all thoughts before it are left out
later messages, other settings  do not matter
==============================  ====================================================================================

==========  ========================================================================================================
entry       ``metadata["anthropic_prefix"]``
==========  ========================================================================================================
system      digest of ``system``
tools       digest of ``tools``
names       digests of the tools by name; only if no earlier message has these tools
before      digest of the messages before the answer
turns       index of a message, and the digests of the messages from there on; earlier ones are in earlier entries
after       name of the last thought before the answer, or ""
thoughts    names of the answer's own thoughts, which are digests of their signatures
==========  ========================================================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from hashlib import sha256
from itertools import accumulate
from typing import Any, NamedTuple, cast

import msgspec

from rxllm.adapters.anthropic.frames import THOUGHTS
from rxllm.adapters.anthropic.refused_thoughts import CHECKS, leaves_out, path_of, thoughts_of
from rxllm.values import Message, Request
from rxllm.values.json_text import json_bytes, json_data
from rxllm.values.prefixes import PrefixReport

Block = dict[str, Any]

KEY = "anthropic_prefix"
"""The key of the digests in the metadata of an answer's message."""


def binds_thoughts(request: Request) -> bool:
    """Return whether the request's model binds thoughts to what comes before them."""
    return CHECKS.search(request.model or "") is not None


class Ledger:
    """The digests of one request, compared with those of earlier ones.

    It is made of a body with all thoughts. `body` is the body to send, and `report` states the differences.
    """

    def __init__(self, request: Request, body: Block) -> None:
        self._entries = [entry for message in request.messages if (entry := _Entry.of(message)) is not None]
        self._known_tools: dict[str, Mapping[str, str]] = {digest([]): {}}
        self._known_tools |= {entry.tools: entry.names for entry in self._entries if entry.names}
        turns: list[Block] = body["messages"]
        self._system = digest(_blocks(body.get("system", "")))
        tools = sorted((_plain(tool) for tool in body.get("tools", ())), key=_tool_name)
        self._names = {_tool_name(tool): digest(tool) for tool in tools}
        self._tools = digest(tools)
        self._turns = [digest([turn["role"], _without_thoughts(turn)]) for turn in turns]
        self._before = list(accumulate(self._turns, _joined, initial=""))
        self._written_after = {  # by the name of each known thought: its entry, and the name of the thought before it
            name: (entry, after)
            for entry in self._entries
            for after, name in zip((entry.after, *entry.thoughts), entry.thoughts, strict=False)
        }
        self._first_changed = dict(zip(self._entries, self._changed_turns(), strict=True))
        # An answer continues the last turn if that is the model's own.
        self._end = len(turns) - bool(turns and turns[-1]["role"] == "assistant")
        thoughts = [_Thought(place, digest(signature)) for place, signature in thoughts_of(body)]
        kept = self._kept(thoughts) if leaves_out(request.options) else thoughts
        sent = {thought.place for thought in kept}
        left_out = [thought for thought in thoughts if thought.place not in sent]
        self.body = _without(body, {thought.place for thought in left_out})
        self._sent = [(path_of(place), digest(signature)) for place, signature in thoughts_of(self.body)]
        causes = {path_of(thought.place): self._cause(thought) for thought in left_out}
        self.report = PrefixReport(self._change(self._entries[-1]) if self._entries else None, causes)

    def entry(self, thoughts: Sequence[str], dropped: Collection[str] = ()) -> dict[str, Any]:
        """Return what the answer's message has to remember.

        `thoughts` are the signatures of the answer's thoughts. `dropped` are the places, in the sent body, of the
        thoughts that the server has dropped.
        """
        last = self._entries[-1] if self._entries else None
        start = last.end if last is not None and self._change(last) is None else 0
        names = {} if self._tools in self._known_tools else {"names": self._names}
        read = [name for path, name in self._sent if path not in dropped]
        return {
            "system": self._system,
            "tools": self._tools,
            **names,
            "before": self._before[self._end],
            "turns": [start, *self._turns[start : self._end]],
            "after": read[-1] if read else "",
            "thoughts": [digest(signature) for signature in thoughts],
        }

    def _kept(self, thoughts: Sequence[_Thought]) -> list[_Thought]:
        """Return the thoughts that the server accepts together: those that lead to the newest possible one."""
        # `chains` maps each thought that can be sent to the thought that must be sent before it, if any.
        chains: dict[_Thought, _Thought | None] = {}
        by_name: dict[str, _Thought] = {}
        previous: _Thought | None = None
        for thought in thoughts:
            entry, after = self._written_after.get(thought.name, (None, ""))
            if entry is not None and self._change(entry, thought.place[0]) is not None:
                continue
            if entry is None or after in by_name:
                chains[thought] = previous if entry is None else by_name[after]
            elif previous is None or not after:
                chains[thought] = None
            else:
                continue
            previous = by_name[thought.name] = thought
        kept: list[_Thought] = []
        while previous is not None:
            kept.append(previous)
            previous = chains[previous]
        return kept[::-1]

    def _cause(self, thought: _Thought) -> str:
        entry, _ = self._written_after.get(thought.name, (None, ""))
        return (entry and self._change(entry, thought.place[0])) or "thoughts"

    def _change(self, entry: _Entry, place: int | None = None) -> str | None:
        """Return the first thing that has changed since the answer with this `entry`.

        `place` is the index of the turn that contains the answer. By default, it is the one that the answer had.
        """
        if entry.system != self._system:
            return "system"
        if entry.tools != self._tools:
            names = self._known_tools.get(entry.tools)
            changed = sorted(dict((names or {}).items() ^ self._names.items()))
            return "tools" if names is None or not changed else f"tools: {changed[0]}"
        end = entry.end if place is None else place
        if end < len(self._before) and self._before[end] == entry.before:
            return None
        first = self._first_changed[entry]
        return f"message {min(end, entry.end) if first is None else first}"

    def _changed_turns(self) -> Iterator[int | None]:
        """Yield, for each entry, the index of the first message that has changed."""
        first: int | None = None
        known = 0  # the digests of the messages before this index are known
        for entry in self._entries:
            if entry.start > known and not self._continues(entry):
                first = 0
            elif first is None or not entry.start:
                own = (i for i, turn in enumerate(entry.turns, entry.start) if self._turns[i : i + 1] != [turn])
                first = next(own, None)
            known = entry.end
            yield first

    def _continues(self, entry: _Entry) -> bool:
        """Return whether the messages before those of `entry` are the same. Their own digests have been lost."""
        before = self._before[entry.start : entry.start + 1]
        return bool(before) and reduce(_joined, entry.turns, before[0]) == entry.before


class _Thought(NamedTuple):
    place: tuple[int, int]
    name: str


class _Entry(msgspec.Struct, frozen=True, eq=False):
    """The digests that an answer remembers, as in the table above. `end` is the number of messages before it."""

    system: str
    tools: str
    before: str
    turns: tuple[str, ...]
    start: int = 0
    after: str = ""
    thoughts: tuple[str, ...] = ()
    names: Mapping[str, str] = {}

    @property
    def end(self) -> int:
        return self.start + len(self.turns)

    @classmethod
    def of(cls, message: Message) -> _Entry | None:
        """Return the entry of a message, or None if it has none or one that cannot be read."""
        match message.metadata.get(KEY):
            case {"turns": [int(start), *turns]} as data if message.role == "assistant" and start >= 0:
                fields = {**cast(dict[str, Any], data), "start": start, "turns": turns}
            case _:
                return None
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError:
            return None


def digest(data: Any) -> str:
    """Return a digest of JSON data, in which the order of keys does not matter.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return sha256(json_bytes(msgspec.to_builtins(json_data(data), order="sorted"))).hexdigest()[:16]


def _joined(before: str, turn: str) -> str:
    return digest([before, turn])


def _tool_name(tool: Block) -> str:
    return str(tool.get("name") or tool.get("type"))


def _blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else [_plain(block) for block in content]


def _plain(block: Any) -> Any:
    """Return a block or tool without its cache marks."""
    if not isinstance(block, dict):
        return block
    block = cast(Block, block)
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    return {**plain, "content": _blocks(plain["content"])} if isinstance(plain.get("content"), list) else plain


def _without_thoughts(turn: Block) -> list[Any]:
    return [block for block in _blocks(turn["content"]) if block.get("type") not in THOUGHTS]


def _without(body: Block, places: Collection[tuple[int, int]]) -> Block:
    if not places:
        return body

    def rest(place: int, turn: Block) -> Block:
        if isinstance(turn["content"], str):
            return turn
        content = [block for index, block in enumerate(turn["content"]) if (place, index) not in places]
        return {**turn, "content": content}

    return {**body, "messages": [rest(place, turn) for place, turn in enumerate(body["messages"])]}
