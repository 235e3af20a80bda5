"""Convert Gemini's content parts to events.

See https://ai.google.dev/api/caching#Part and https://ai.google.dev/gemini-api/docs/thought-signatures. The rules are:

* A call arrives either as a whole or one value at a time (``partialArgs``). Most calls have no id.
* A call that arrives as a whole is held back. If its ``functionResponse`` arrives, Gemini has run the call itself. If
  the answer ends first, or if other content arrives first, the client must run the held call. A call with
  ``partialArgs`` counts as other content. Other whole calls and their ``functionResponse``s do not.
* A ``thoughtSignature`` is kept, so that it can be sent back with its part. Signed text and unsigned text are never
  joined.
* A tool that Gemini runs becomes a call with the metadata ``{"server": True}``. Gemini's own parts for that call are
  kept as ``ProviderPart``s.
* A part of an unknown kind becomes a ``RawChunk``.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any, cast

from rxllm.adapters.gemini.frames import PROVIDER, FunctionCall, Part
from rxllm.values import ProviderPart
from rxllm.values.json_text import read_json
from rxllm.wire.event_order import Blocks
from rxllm.wire.frames import decode_base64

_EMPTY = Part(text="")


class PartReader:
    """Converts the parts of one response to events.

    If `raw` is True, unknown parts are not reported here, because the decoder already reports every chunk.
    """

    def __init__(self, blocks: Blocks, *, raw: bool) -> None:
        self.raw = raw
        self._blocks = blocks
        self._calls = 0  # the number of calls, which is also the index of the next one
        self._partial: tuple[int, PartialArguments] | None = None
        self._waiting = WaitingCalls()
        self._reported: bytes | None = None  # the last frame that became a RawChunk

    def read(self, part: Part, frame: bytes) -> None:
        if self._waiting.calls and part.function_call is None and part.function_response is None and part != _EMPTY:
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
            self._keep_part("functionResponse", part.function_response, part)
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
            blocks.part(ProviderPart(PROVIDER, signed))
        blocks.close_block()

    def settle(self) -> None:
        waiting, self._waiting = self._waiting, WaitingCalls()
        for call, signature in waiting.calls.values():
            self._blocks.complete_call(self._begin_call(call, signature, call.args))

    def _settle_as_server(self, response: dict[str, Any]) -> None:
        found = self._waiting.pop(response.get("name"), response.get("id"))
        if found is not None:
            call, signature = found
            self._call_server(call.name or "", call.id, call.args)
            fields = {"id": call.id, "name": call.name, "args": call.args}
            data = {name: value for name, value in fields.items() if value is not None}
            self._keep_part("functionCall", data, Part(thought_signature=signature))

    def _begin_call(self, call: FunctionCall, signature: str | None, arguments: Any) -> int:
        index = self._next_index()
        fields = {"id": call.id, "thoughtSignature": signature}
        own = {name: value for name, value in fields.items() if value}
        self._blocks.call(index, call.id, call.name, arguments, {PROVIDER: own} if own else {})
        return index

    def _read_call(self, call: FunctionCall, signature: str | None, frame: bytes) -> None:
        if call.name:
            self._end_partial()
            if not call.partial_args and not call.will_continue:
                self._waiting.add(call, signature)
                return
            self.settle()
            self._partial = (self._begin_call(call, signature, None), PartialArguments())
        if self._partial is not None:
            self._partial[1].feed(call.partial_args or ())
            if not call.will_continue:
                self._end_partial()
        elif not call.name:
            self._report_unknown(frame)  # the piece belongs to a call that never began

    def flush(self) -> None:
        self.settle()
        self._end_partial(is_complete=False)

    def _end_partial(self, *, is_complete: bool = True) -> None:
        if self._partial is not None:
            index, partial = self._partial
            self._partial = None
            self._blocks.call(index, None, None, partial.finish())
            if is_complete:
                self._blocks.complete_call(index)

    def _read_server(self, part: Part, frame: bytes) -> None:
        match part:
            case Part(executable_code=dict(code)):
                arguments = {name: value for name, value in code.items() if name != "id"}
                self._call_server("code_execution", code.get("id"), arguments)
                self._keep_part("executableCode", code, part)
            case Part(tool_call=dict(call)):
                self._call_server(str(call.get("toolType", "server_tool")).lower(), call.get("id"), call.get("args"))
                self._keep_part("toolCall", call, part)
            case Part(code_execution_result=dict(result)):
                self._keep_part("codeExecutionResult", result, part)
            case Part(tool_response=dict(response)):
                self._keep_part("toolResponse", response, part)
            case Part(thought_signature=str(signature)):
                self._read_signed("", signature, thought=bool(part.thought))
            case _:
                self._report_unknown(frame)

    def _report_unknown(self, frame: bytes) -> None:
        if not self.raw and frame is not self._reported:  # report each frame only once
            self._reported = frame
            self._blocks.raw("part", read_json(frame))

    def _call_server(self, name: str, id: Any, arguments: Any) -> None:
        index = self._next_index()
        fields = cast(dict[str, Any], arguments) if isinstance(arguments, dict) else {}
        self._blocks.call(index, str(id) if id else None, name, fields, {"server": True})
        self._blocks.complete_call(index)

    def _keep_part(self, kind: str, data: dict[str, Any], part: Part) -> None:
        signed = {"thoughtSignature": part.thought_signature} if part.thought_signature else {}
        self._blocks.part(ProviderPart(PROVIDER, {kind: data, **signed}))

    def _next_index(self) -> int:
        self._calls += 1
        return self._calls - 1


class WaitingCalls:
    """Calls that arrived as a whole, with their signatures, by their number."""

    def __init__(self) -> None:
        self.calls: dict[int, tuple[FunctionCall, str | None]] = {}
        self._added = 0
        # The numbers of the calls with each name, and with each name and id. Calls that were popped are still in them.
        self._numbers: defaultdict[tuple[Any, ...], deque[int]] = defaultdict(deque)

    def add(self, call: FunctionCall, signature: str | None) -> None:
        self.calls[self._added] = (call, signature)
        for key in ((call.name,), (call.name, call.id)):
            self._numbers[key].append(self._added)
        self._added += 1

    def pop(self, name: Any, id: Any) -> tuple[FunctionCall, str | None] | None:
        """Remove and return the first call that a response with this `name` and `id` belongs to.

        Most responses have no id. They belong to the first call of that name.
        """
        if not isinstance(name, str) or not isinstance(id, str | None):
            return None
        firsts = [self._first(key) for key in ([(name, id), (name, None)] if id else [(name,)])]
        return self.calls.pop(min((number for number in firsts if number is not None), default=-1), None)

    def _first(self, key: tuple[Any, ...]) -> int | None:
        numbers = self._numbers[key]
        while numbers and numbers[0] not in self.calls:
            numbers.popleft()
        return numbers[0] if numbers else None


def _file(part: Part) -> dict[str, Any]:
    data = part.inline_data or part.file_data or {}
    file: dict[str, Any] = {"mime_type": data.get("mimeType") or "application/octet-stream"}
    if part.inline_data:
        file["data"] = decode_base64(str(data.get("data") or ""))
    else:
        file["url"] = data.get("fileUri")
    if part.thought:
        file["thought"] = True
    if part.thought_signature:
        file["thoughtSignature"] = part.thought_signature
    return file


_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,9})\]|\[(?:'([^']*)'|"([^"]*)")\]""")


class PartialArguments:
    """Assembles the arguments of a call when their values arrive one at a time.

    A string value can arrive in several pieces. See
    https://docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling.

    >>> partial = PartialArguments()
    >>> partial.feed([{"jsonPath": "$.at[0].city", "stringValue": "Par", "willContinue": True}])
    >>> partial.feed([{"jsonPath": "$.at[0].city", "stringValue": "is"}, {"jsonPath": "$.days", "numberValue": 2}])
    >>> partial.finish()
    {'at': [{'city': 'Paris'}], 'days': 2}
    """

    def __init__(self) -> None:
        self._arguments: dict[str, Any] = {}
        self._open: dict[str, list[str]] = {}  # the pieces of each unfinished string, by path

    def feed(self, pieces: Iterable[Mapping[str, Any]]) -> None:
        for piece in pieces:
            path = str(piece.get("jsonPath") or "")
            match piece:
                case {"stringValue": str(text)}:
                    self._feed_text(path, text, continues=bool(piece.get("willContinue")))
                case {"numberValue": value} | {"boolValue": value}:
                    _assign(self._arguments, path, value)
                case _:
                    _assign(self._arguments, path, None)

    def finish(self) -> dict[str, Any]:
        for path, texts in self._open.items():
            _assign(self._arguments, path, "".join(texts))
        return self._arguments

    def _feed_text(self, path: str, text: str, *, continues: bool) -> None:
        if path not in self._open:
            _assign(self._arguments, path, text)  # insert the key now, so that it stays before later keys
            if not continues:
                return
        texts = self._open.setdefault(path, [])
        texts.append(text)
        if not continues:
            _assign(self._arguments, path, "".join(self._open.pop(path)))


def _assign(root: dict[str, Any], path: str, value: Any) -> None:
    keys: list[str | int] = [
        int(step[2]) if step[2] else step[1] or step[3] or step[4] or "" for step in _STEP.finditer(path)
    ]
    target: Any = root
    for key, following in zip(keys, [*keys[1:], None], strict=False):
        empty: Any = value if following is None else [] if isinstance(following, int) else {}
        if isinstance(target, list) and isinstance(key, int):
            items = cast(list[Any], target)
            place = min(key, len(items))  # do not fill gaps in the list
            if place == len(items):
                items.append(empty)
            elif following is None:
                items[place] = value
            target = items[place]
        elif isinstance(target, dict) and isinstance(key, str):
            fields = cast(dict[str, Any], target)
            if following is None:
                fields[key] = value
            else:
                target = fields.setdefault(key, empty)
        else:
            return  # the path contradicts an earlier one
