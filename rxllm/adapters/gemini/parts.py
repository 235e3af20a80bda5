"""The parts of Gemini's content to events.

https://ai.google.dev/api/caching#Part and https://ai.google.dev/gemini-api/docs/thought-signatures. What comes, and
what is done:

* a call comes whole, or value by value (``partialArgs``); most have no id, and none is made of the name;
* a whole call waits for what follows it: a ``functionResponse`` says that it is the server's, which has asked an MCP
  server, and anything else, or the end, that it is ours;
* a ``thoughtSignature`` goes back with the part it came with: a call's is in its metadata, a file's in the file; that
  of thinking is the block's, that of text a ``ProviderPart`` after it; signed and unsigned text are never joined;
* code execution and other tools of the server are calls with the metadata ``{"server": True}``; these parts and their
  results are ``ProviderPart``s, which go back as they are;
* a part of nothing known is a ``RawChunk``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from rxllm.adapters.gemini.frames import PROVIDER, FunctionCall, Part
from rxllm.values import ProviderPart
from rxllm.values._json import read_json
from rxllm.wire.blocks import Blocks

_EMPTY = Part(text="")  # says nothing


class PartReader:
    """Reports the parts of one response to its `blocks`; with `raw`, somebody else shows what is not known."""

    def __init__(self, blocks: Blocks, *, raw: bool) -> None:
        self.raw = raw
        self._blocks = blocks
        self._calls = 0  # so far; a call's number is its index
        self._partial: tuple[int, PartialArguments] | None = None
        self._waiting: list[tuple[FunctionCall, str | None]] = []  # whole calls, with their signatures
        self._shown: bytes | None = None  # the last frame that was

    def read(self, part: Part, frame: bytes) -> None:
        if self._waiting and part.function_call is None and part.function_response is None and part != _EMPTY:
            self.settle()
        if part.text and not part.thought_signature:
            if part.thought:
                self._blocks.thinking(part.text)
            else:
                self._blocks.text(part.text)
        elif part.function_call is not None:
            self._read_call(part.function_call, part.thought_signature, frame)
        elif part.function_response is not None:
            self._settle_as_server(part.function_response)
            self._keep("functionResponse", part.function_response, part)
        elif part.inline_data or part.file_data:
            self._blocks.file(_file(part))
        elif part.text is None:
            self._read_server(part, frame)
        elif part.thought_signature:
            self._read_signed(part.text, part.thought_signature, thought=bool(part.thought))

    def _read_signed(self, text: str, signature: str, *, thought: bool) -> None:
        blocks = self._blocks
        blocks.close_block()
        if thought:
            blocks.thinking(text)
            blocks.sign(signature, {"provider": PROVIDER})
        else:
            blocks.text(text)
            signed = {"thoughtSignature": signature} if text else {"text": "", "thoughtSignature": signature}
            blocks.part("thoughtSignature", ProviderPart(PROVIDER, signed))
        blocks.close_block()

    def settle(self) -> None:
        """What has come so far will not be answered by the server: the calls that wait are ours."""
        waiting, self._waiting = self._waiting, []
        for call, signature in waiting:
            self._blocks.complete_call(self._begin_call(call, signature, call.args))

    def _settle_as_server(self, response: dict[str, Any]) -> None:
        for place, (call, signature) in enumerate(self._waiting):
            id = response.get("id") or call.id  # most have none
            if call.name == response.get("name") and call.id in (None, id):
                del self._waiting[place]
                self._call_server(call.name or "", call.id, call.args)
                fields = {"id": call.id, "name": call.name, "args": call.args}
                data = {name: value for name, value in fields.items() if value is not None}
                self._keep("functionCall", data, Part(thought_signature=signature))
                break

    def _begin_call(self, call: FunctionCall, signature: str | None, arguments: Any) -> int:
        index = self._new_call()
        own = {"id": call.id, "thoughtSignature": signature}
        own = {name: held for name, held in own.items() if held}
        self._blocks.call(index, call.id, call.name, arguments, {PROVIDER: own} if own else {})
        return index

    def _read_call(self, call: FunctionCall, signature: str | None, frame: bytes) -> None:
        if call.name:
            self._finish_partial()
            if not call.partial_args and not call.will_continue:
                self._waiting.append((call, signature))
                return
            self.settle()
            self._partial = (self._begin_call(call, signature, None), PartialArguments())
        if self._partial is not None:
            self._partial[1].feed(call.partial_args or ())
            if not call.will_continue:
                self._finish_partial()
        elif not call.name:
            self._show(frame)  # the rest of a call that never began

    def cut(self) -> None:
        """Nothing more will come: of a call that is not complete there is what has come."""
        self.settle()
        self._end_partial()

    def _finish_partial(self) -> None:
        index = self._end_partial()
        if index is not None:
            self._blocks.complete_call(index)

    def _end_partial(self) -> int | None:
        if self._partial is None:
            return None
        index, partial = self._partial
        self._partial = None
        self._blocks.call(index, None, None, partial.finish())
        return index

    def _read_server(self, part: Part, frame: bytes) -> None:
        match part:
            case Part(executable_code=dict(code)):
                arguments = {name: value for name, value in code.items() if name != "id"}
                self._call_server("code_execution", code.get("id"), arguments)
                self._keep("executableCode", code, part)
            case Part(tool_call=dict(call)):
                self._call_server(str(call.get("toolType", "server_tool")).lower(), call.get("id"), call.get("args"))
                self._keep("toolCall", call, part)
            case Part(code_execution_result=dict(result)):
                self._keep("codeExecutionResult", result, part)
            case Part(tool_response=dict(response)):
                self._keep("toolResponse", response, part)
            case Part(thought_signature=str(signature)):
                self._read_signed("", signature, thought=bool(part.thought))
            case _:
                self._show(frame)

    def _show(self, frame: bytes) -> None:
        if not self.raw and frame is not self._shown:  # once, however many of its parts are unknown
            self._shown = frame
            self._blocks.raw("part", read_json(frame))

    def _call_server(self, name: str, id: Any, arguments: Any) -> None:
        index = self._new_call()
        given = cast(dict[str, Any], arguments) if isinstance(arguments, dict) else {}
        self._blocks.call(index, str(id) if id else None, name, given, {"server": True})
        self._blocks.complete_call(index)

    def _keep(self, kind: str, held: dict[str, Any], part: Part) -> None:
        signed = {"thoughtSignature": part.thought_signature} if part.thought_signature else {}
        self._blocks.part(kind, ProviderPart(PROVIDER, {kind: held, **signed}))

    def _new_call(self) -> int:
        self._calls += 1
        return self._calls - 1


def _file(part: Part) -> dict[str, Any]:
    held = part.inline_data or part.file_data or {}
    file: dict[str, Any] = {"mime_type": held.get("mimeType") or "application/octet-stream"}
    if part.inline_data:
        file["data"] = _from_base64(str(held.get("data") or ""))
    else:
        file["url"] = held.get("fileUri")
    if part.thought:
        file["thought"] = True
    if part.thought_signature:
        file["thoughtSignature"] = part.thought_signature
    return file


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""


_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,9})\]|\[(?:'([^']*)'|"([^"]*)")\]""")


class PartialArguments:
    """The arguments of a call that come value by value, each with its path: ``{"jsonPath": "$.a[0].b", ...}``.

    https://docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling. A string may come in
    pieces: it goes on where the piece before it said ``willContinue``.

    >>> partial = PartialArguments()
    >>> partial.feed([{"jsonPath": "$.at[0].city", "stringValue": "Par", "willContinue": True}])
    >>> partial.feed([{"jsonPath": "$.at[0].city", "stringValue": "is"}, {"jsonPath": "$.days", "numberValue": 2}])
    >>> partial.finish()
    {'at': [{'city': 'Paris'}], 'days': 2}
    """

    def __init__(self) -> None:
        self._arguments: dict[str, Any] = {}
        self._open: dict[str, list[str]] = {}  # the strings that go on, by path

    def feed(self, pieces: Iterable[Mapping[str, Any]]) -> None:
        for piece in pieces:
            path = str(piece.get("jsonPath") or "")
            match piece:
                case {"stringValue": str(text)}:
                    self._feed_text(path, text, goes_on=bool(piece.get("willContinue")))
                case {"numberValue": value} | {"boolValue": value}:
                    _assign(self._arguments, path, value)
                case _:
                    _assign(self._arguments, path, None)

    def finish(self) -> dict[str, Any]:
        """All that has come."""
        for path, texts in self._open.items():
            _assign(self._arguments, path, "".join(texts))
        return self._arguments

    def _feed_text(self, path: str, text: str, *, goes_on: bool) -> None:
        if path not in self._open:
            _assign(self._arguments, path, text)  # keeps the place
            if not goes_on:
                return
        texts = self._open.setdefault(path, [])
        texts.append(text)
        if not goes_on:
            _assign(self._arguments, path, "".join(self._open.pop(path)))


def _assign(root: dict[str, Any], path: str, value: Any) -> None:
    keys: list[str | int] = [
        int(step[2]) if step[2] else step[1] or step[3] or step[4] or "" for step in _STEP.finditer(path)
    ]
    at: Any = root
    for key, following in zip(keys, [*keys[1:], None], strict=False):
        empty: Any = value if following is None else [] if isinstance(following, int) else {}
        if isinstance(at, list) and isinstance(key, int):
            at = _put_item(cast(list[Any], at), key, empty, replace=following is None)
        elif isinstance(at, dict) and isinstance(key, str):
            held = cast(dict[str, Any], at)
            at = held.setdefault(key, empty) if following is not None else held.__setitem__(key, value)
        else:
            return  # a path that contradicts those before it


def _put_item(items: list[Any], index: int, value: Any, *, replace: bool) -> Any:
    if index >= len(items):  # whatever the index: nothing is padded
        items.append(value)
    elif replace:
        items[index] = value
    return items[min(index, len(items) - 1)]
