"""The content blocks of a message: each is opened, filled by deltas and stopped.

=====================  ==============================================================================================
block                  gives
=====================  ==============================================================================================
``text``               text; its citations are ``SourceAdded`` after it, though the wire puts some before
``thinking``,          thinking; signature or ciphertext goes back to the provider by `provider_data`
``redacted_thinking``
``tool_use``           a call; arguments that come whole with the block count where no delta follows
``server_tool_use``,   a call with the metadata ``{"server": True}``
``mcp_tool_use``
anything else          a part of the message that goes back as it came: results of server tools, compactions, uploads
                       and what is still to be invented; and a ``SourceAdded`` for each page among search results
=====================  ==============================================================================================

What a block was opened with besides counts too: some servers, and messages that were not streamed, say all of it there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from rxllm.adapters._anthropic_frames import CLIENT_CALL, SERVER_CALLS, Delta
from rxllm.values import ProviderPart
from rxllm.wire.blocks import Blocks


class _Block:
    """A block that is open: `data` is what it was opened with, `position` is a call's, in the response."""

    __slots__ = ("citations", "data", "filled", "kind", "position")

    def __init__(self, kind: str, data: dict[str, Any]) -> None:
        self.kind = kind
        self.data = data
        self.position: int | None = None
        self.filled = False  # by a delta
        self.citations: list[Any] = []

    @property
    def is_opaque(self) -> bool:
        return self.position is None and self.kind not in ("text", "thinking", "redacted_thinking")


class Content:
    """Reports the blocks of one message to `blocks`."""

    def __init__(self, blocks: Blocks, provider: str) -> None:
        self._blocks = blocks
        self._provider = provider
        self._open: dict[int, _Block] = {}
        self._calls = 0

    def start(self, index: int, data: dict[str, Any]) -> None:
        """A block begins; one that is open at `index` is over."""
        if index in self._open:
            self.stop(index)
        self._blocks.close_block()
        kind = str(data.get("type"))
        block = self._open[index] = _Block(kind, data)
        match kind:
            case "text":
                self._blocks.text(_text(data.get("text")))
                block.citations += _list(data.get("citations"))
            case "thinking":
                self._blocks.thinking(_text(data.get("thinking")))
                self._sign(_text(data.get("signature")))
            case "redacted_thinking":
                self._blocks.sign(None, {"provider": self._provider, **data})
            case _ if kind == CLIENT_CALL or kind in SERVER_CALLS:
                block.position, self._calls = self._calls, self._calls + 1
                metadata = self._metadata(kind, data)
                self._blocks.call(block.position, _text(data.get("id")), _text(data.get("name")), None, metadata)
            case _:
                pass

    def add(self, index: int, delta: Delta) -> bool:
        """A delta of a block; whether it is one that we know."""
        if delta.text is not None:
            self._blocks.text(delta.text)
        elif delta.thinking is not None:
            self._blocks.thinking(delta.thinking)
        elif delta.signature is not None:
            self._sign(delta.signature)
        else:
            block = self._open.get(index)
            return block is not None and self._add_to(block, delta)
        return True

    def add_odd(self, index: int, delta: dict[str, Any]) -> bool:
        """A delta that we do not know; whether it fills a block that goes back as it came."""
        block = self._open.get(index)
        if block is None or not block.is_opaque:
            return False
        block.data |= {name: held for name, held in delta.items() if name != "type"}
        return True

    def stop(self, index: int) -> None:
        """A block is complete."""
        block = self._open.pop(index, None)
        self._blocks.close_block()
        if block is not None:
            self._say_rest(block)
            if block.position is not None:
                self._blocks.complete_call(block.position)

    def flush(self) -> None:
        """The message is over: what unstopped blocks hold counts, but no call is complete for it."""
        for block in self._open.values():
            self._blocks.close_block()
            self._say_rest(block)
        self._open = {}

    def _add_to(self, block: _Block, delta: Delta) -> bool:
        if delta.partial_json is not None and block.position is not None:
            block.filled = block.filled or bool(delta.partial_json)
            self._blocks.call(block.position, None, None, delta.partial_json)
        elif delta.citation is not None:
            block.citations.append(delta.citation)
        else:
            return False
        return True

    def _sign(self, signature: str) -> None:
        if signature:
            self._blocks.sign(signature, {"provider": self._provider, "type": "thinking"})

    def _metadata(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        # What must be sent back with the call besides what every call has.
        own = {k: v for k, v in data.items() if k not in ("type", "id", "name", "input") and v is not None}
        if own.get("caller") == {"type": "direct"}:
            del own["caller"]
        if kind == CLIENT_CALL:
            return {self._provider: own} if own else {}
        return {"server": True, self._provider: {"type": kind, **own}}

    def _say_rest(self, block: _Block) -> None:
        if block.position is not None and not block.filled and block.data.get("input"):
            self._blocks.call(block.position, None, None, block.data["input"])
        for citation in block.citations:
            self._blocks.source(citation)
        if block.is_opaque:
            self._blocks.part(block.kind, ProviderPart(self._provider, block.data))
            for source in _pages(block.data.get("content")):
                self._blocks.source(source)


def _pages(content: Any) -> Iterable[dict[str, Any]]:
    # Of a web search or a fetch. Their text is ciphertext or long, and stays in the part.
    for page in _list(content) if isinstance(content, list) else _list([content]):
        if isinstance(page.get("url"), str):
            yield {k: v for k, v in page.items() if k not in ("encrypted_content", "content") and v is not None}


def _list(held: Any) -> list[dict[str, Any]]:
    return [each for each in cast(list[Any], held) if isinstance(each, dict)] if isinstance(held, list) else []


def _text(held: Any) -> str:
    return held if isinstance(held, str) else ""
