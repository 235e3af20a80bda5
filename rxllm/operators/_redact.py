"""Change text as it arrives: `map_text` and `redact`.

A position is *open* if a match that begins there might extend beyond the text received so far. ``regex`` reports this
as a partial match. Text before the first open position is settled. `redact` replaces the matches in that text and emits
it.

A position may be open until `max_match` characters have been received, counting from the position. After that, it stays
open only if a match that begins at the position is found in those characters. Such a match may grow to any length. How
the text is split into deltas therefore makes no difference.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

import msgspec
from reactivex import Observable

from rxllm.collector import BlockKey, answer, block_key, fold_message
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    Nested,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolResultEncoded,
    with_text,
)
from rxllm.operators._event_operators import EVENTS, Agents, lift, not_an_event, with_agents
from rxllm.operators._strings import TextOperator, for_strings_too
from rxllm.runtime import Stream
from rxllm.values import ChatResult, EngineError, Message, Part, Response, StepResult, TextPart, ThinkingPart, Thread
from rxllm.values.argument_checks import check_count, check_function, check_instance, invalid_option, shown
from rxllm.values.threads import AGENTS


def map_text(fn: Callable[[str], str]) -> Callable[[Observable[Event]], Stream[Event]]:
    """Replace text with the result of `fn`.

    ::

        source               --H--i--Hi--message--|        (two deltas, their completion, the message "Hi")
        map_text(str.upper)  --H--I--HI--message--|        (the message is "HI")

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> stream_generate(Fake(["Hel", "lo"]), "Hi").pipe(map_text(str.upper), ops.to_response()).run().output_text
    'HELLO'

    `fn` is called once for each delta, so it does not see a word that is split over two deltas; `redact` finds such
    words, and ``sentences`` and ``words`` put them together. Its results are joined to form the completed text. An
    empty result drops the delta. If there are no deltas, `fn` is called with the whole text. Thinking and tool calls
    are left unchanged.

    Messages, ``StepCompleted`` and ``ChatCompleted`` contain the new text. In an engine's operators, `map_text` also
    changes the text that the model receives in later steps. If `map_text` is applied to the result of ``stream``,
    the model still receives the original text. Agents' text (``Nested``) is replaced at any depth. Agents' answers in
    tool results are left unchanged. If `fn` raises, the stream ends with that exception.

    Raises ``ValidationError("invalid_option")`` if `fn` is not a function.
    """
    check_function("fn", fn)
    return lift(lambda: _Mapping(fn))


def redact(pattern: str | re.Pattern[str], replacement: str = "[redacted]", *, max_match: int = 256) -> TextOperator:
    """Replace every match of `pattern` in text and thinking.

    ::

        source                --"my key is sk-"--"12345"--", ok?"------------end--|
        redact(r"sk-\\w+")     --"my key is "--------------"[redacted], ok?"--end--|

    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> events = stream_generate(Fake(["my key is sk-", "12345", ", ok?"]), "Hi").pipe(redact(r"sk-\\w+"))
    >>> [event.delta for event in events if isinstance(event, TextDelta)]
    ['my key is ', '[redacted], ok?']

    `replacement` is inserted literally. A match may span several deltas.

    Text that might become part of a match is held back, up to `max_match` characters. A match that is longer than
    `max_match` is replaced only if `pattern` would also match at the same place if the text ended `max_match`
    characters after the start of the match. A long match that meets this condition is held back until its end. The
    condition also applies to a match whose look-ahead reads past that point. If the pattern contains ``$`` or ``\\B``,
    `max_match` characters are always held back. Held-back text is emitted at the end of a block, but not after an
    ``on_error``.

    Deltas, completed text, messages, ``StepCompleted`` and ``ChatCompleted`` are redacted. Redacted thinking loses its
    signature and provider data, which are no longer valid. Tool calls and their results, user messages and a response's
    `parsed` are left unchanged.

    Agents' events (``Nested``) are redacted at any depth. Agents' answers in tool results are redacted too, except
    parsed objects. In a stream of strings, the strings are the deltas of one text.

    Raises ``EngineError("missing_dependency")`` if ``rxllm[redact]`` is not installed. Raises
    ``ValidationError("invalid_option")`` if `pattern` is invalid or matches the empty string, or if another option is
    invalid.
    """
    compiled = _compile(pattern)
    check_instance("replacement", replacement, str, "a string")
    check_count("max_match", max_match)
    redacting = lift(lambda: _Redacting(lambda: Redactor(compiled, replacement, max_match)))
    return for_strings_too("redact", redacting)


def _compile(pattern: Any) -> Any:
    try:
        regex = import_module("regex")
    except ImportError as error:
        message = "redact() needs regex: pip install 'rxllm[redact]'"
        raise EngineError("missing_dependency", message) from error
    source: Any = getattr(pattern, "pattern", pattern)
    flags: int = getattr(pattern, "flags", 0)
    check_instance("pattern", source, str, "a regular expression for strings")
    try:
        compiled = regex.compile(source, flags & ~re.DEBUG)
    except regex.error as error:
        raise invalid_option("pattern", f"is not a regular expression: {shown(source)}: {error}") from error
    if compiled.fullmatch(""):
        raise invalid_option("pattern", f"must not match the empty string, but {shown(source)} does")
    return compiled


class Redactor:
    """Redacts text that arrives in pieces.

    `pattern` must have been compiled by ``regex``. The last `max_match` settled characters are kept for look-behinds.
    """

    def __init__(self, pattern: Any, replacement: str, max_match: int) -> None:
        self._pattern = pattern
        self._replacement = replacement
        self._max = max_match
        self._looks_ahead = _LOOKS_AHEAD.search(pattern.pattern) is not None
        self._margin = max_match + 1 if _AT_THE_END.search(pattern.pattern) else 0
        self._text = ""
        self._at = 0  # the end of the text that has already been returned
        self._unread: list[str] = []
        self._unread_length = 0

    def feed(self, text: str) -> str:
        return "".join(self._read(text[begin : begin + _PIECE]) for begin in range(0, len(text), _PIECE))

    def _read(self, piece: str) -> str:
        self._unread.append(piece)
        self._unread_length += len(piece)
        held = len(self._text) - self._at
        if held > _LONG and held > _LONG_PART * self._unread_length:
            return ""
        self._join()
        settled = self._settle(final=False)
        begin = max(0, self._at - self._max)
        self._text, self._at = self._text[begin:], self._at - begin
        return settled

    def _join(self) -> None:
        self._text = "".join((self._text, *self._unread))
        self._unread, self._unread_length = [], 0

    def close(self) -> str:
        self._join()
        settled = self._settle(final=True)
        self._text, self._at = "", 0
        return settled

    def whole(self, text: str) -> str:
        redactor = Redactor(self._pattern, self._replacement, self._max)
        redactor._text = text
        return redactor.close()

    def _settle(self, *, final: bool) -> str:
        text, at, settled = self._text, self._at, list[str]()
        end = len(text) if final else -1
        while True:
            first = self._pattern.search(text, at, partial=not final)
            if end < at or first is None:  # otherwise, `end` is still the first open position
                end = len(text) if final else self._first_open(text, at, first)
            match = self._match(text, at, end) if first is not None else None
            if match is None:
                break
            settled += (text[at : match.start()], self._replacement)
            at = match.end()
        self._at = end
        return "".join((*settled, text[at:end]))

    def _first_open(self, text: str, at: int, first: Any) -> int:
        beyond = max(at, len(text) - self._margin)
        if first is None:
            return beyond
        # `search` may prefer a later full match to an earlier partial one.
        positions = range(first.start() if first.partial else at, beyond)
        return next((position for position in positions if self._is_open(text, position)), beyond)

    def _is_open(self, text: str, at: int) -> bool:
        if self._pattern.fullmatch(text, at, partial=True) is None:
            return False
        return len(text) - at <= self._max or self._matches_at(text, at)

    def _matches_at(self, text: str, at: int) -> bool:
        return self._pattern.match(text, at, at + self._max) is not None

    def _match(self, text: str, at: int, end: int) -> Any:
        while at < end:
            match = self._pattern.search(text, at)
            if match is None or match.start() >= end:
                return None
            if match.end() > match.start() and self._counts(text, match):
                return match
            at = match.start() + 1
        return None

    def _counts(self, text: str, match: Any) -> bool:
        within = match.end() - match.start() <= self._max and not self._looks_ahead
        return within or self._matches_at(text, match.start())


_PIECE = 256
"""How many characters are read at a time, so that a long delta costs no more than short ones."""
_LONG, _LONG_PART = 4_096, 16
"""While more than `_LONG` characters are held back, they are read again only once a sixteenth has been added."""

_LOOKS_AHEAD = re.compile(r"\(\?[=!]")
# More text can change whether these match, but partial matching does not take that into account.
_AT_THE_END = re.compile(r"\$|\\B")


class _Redacting:
    def __init__(self, make: Callable[[], Redactor]) -> None:
        self._make = make
        self._whole = make().whole
        self._open: dict[BlockKey, Redactor] = {}
        self._agents = Agents(lambda: _Redacting(make))
        self._running: set[str] = set()  # calls whose agents may outlast the response

    def feed(self, event: Event) -> Iterable[Event]:
        match event:
            case TextDelta() | ThinkingDelta():
                return self._delta(event)
            case TextCompleted():
                changed = msgspec.structs.replace(event, text=self._whole(event.text))
                return (*self._rest(block_key(TextDelta, event.id, self._open)), changed)
            case ThinkingCompleted():
                text = self._whole(event.text)
                changed = event if text == event.text else ThinkingCompleted(text, id=event.id)
                return (*self._rest(block_key(ThinkingDelta, event.id, self._open)), changed)
            case MessageCompleted():
                closed = self._close(self._agents.keys() - self._running)
                return (*closed, msgspec.structs.replace(event, message=self._message(event.message)))
            case ErrorEvent():
                return (*self.close(), event)
            case StepRestarted():
                self._open.clear()
                self._agents.clear()
                self._running.clear()
                return (event,)
            case ToolExecutionStarted(id=id):
                self._running.add(id)
                return (event,)
            case Nested():
                return self._agents.feed(event)
            case ToolExecutionCompleted() if event.id in self._agents:
                changed = msgspec.structs.replace(event, result=self._data(event.result))
                return (*self._agents.close(event.id), changed)
            case ToolResultEncoded() if event.id in self._agents:
                return (ToolResultEncoded(event.id, self._whole(event.content)),)
            case StepCompleted():
                return (*self._agents.close(), StepCompleted(self._step(event.result)))
            case ChatCompleted():
                return (ChatCompleted(self._chat(event.unparsed or event.result)),)
            case _ if type(event) in EVENTS:
                return (event,)
            case _:
                raise not_an_event("redact", event)

    def close(self) -> Iterable[Event]:
        return self._close(self._agents)

    def _close(self, agents: Iterable[str]) -> list[Event]:
        closed = [event for id in sorted(agents) for event in self._agents.close(id)]
        return [*closed, *(event for key in list(self._open) for event in self._rest(key))]

    def _delta(self, event: TextDelta | ThinkingDelta) -> Iterable[Event]:
        key = block_key(type(event), event.id, self._open)
        block = self._open.get(key) or self._open.setdefault(key, self._make())
        text = block.feed(event.delta)
        if text == event.delta:
            return (event,)
        return (with_text(event, text),) if text else ()

    def _rest(self, key: tuple[Any, str | None]) -> Iterable[Event]:
        block = self._open.pop(key, None)
        rest = block.close() if block is not None else ""
        return (key[0](rest, key[1]),) if rest else ()

    def _data(self, value: Any) -> Any:
        match value:
            case str():
                return self._whole(value)
            case dict():
                return {key: self._data(entry) for key, entry in cast(dict[Any, Any], value).items()}
            case list():
                return [self._data(entry) for entry in cast(list[Any], value)]
            case _:
                return value

    def _message(self, message: Message) -> Message:
        message = with_agents(message, lambda id, thread: self._agents[id].thread(thread))
        if isinstance(message.content, str):
            return replace(message, content=self._whole(message.content))
        if isinstance(message.content, dict):
            return message
        return replace(message, content=tuple(map(self._part, message.content)))

    def _part(self, part: Part) -> Part:
        if not isinstance(part, TextPart | ThinkingPart):
            return part
        text = self._whole(part.text)
        if text == part.text:
            return part
        return ThinkingPart(text) if isinstance(part, ThinkingPart) else replace(part, text=text)

    def _response(self, response: Response[Any]) -> Response[Any]:
        if response.message is None:
            return replace(response, output_text=self._whole(response.output_text))
        message = self._message(response.message)
        return replace(response, message=message, output_text=message.text)

    def thread(self, thread: Thread) -> Thread:
        return replace(thread, messages=self._messages(thread.messages))

    def _messages(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        return tuple(
            self._message(message) if message.role == "assistant" or message.tool_call_id in self._agents else message
            for message in messages
        )

    def _step(self, step: StepResult[Any]) -> StepResult[Any]:
        return replace(
            step,
            response=self._response(step.response),
            thread=self.thread(step.thread),
            tool_results=self._messages(step.tool_results),
        )

    def _chat(self, chat: ChatResult[Any]) -> ChatResult[Any]:
        final = chat.final_response and self._response(chat.final_response)
        steps = tuple(map(self._step, chat.steps))
        return replace(chat, final_response=final, steps=steps, thread=self.thread(chat.thread))


class _Mapping:
    def __init__(self, fn: Callable[[str], str]) -> None:
        self._fn = fn
        self._steps: list[tuple[StepResult, StepResult]] = []  # Each original step and its replacement.
        # Maps the length of a thread to indexes in `_steps`. The steps at these indexes have threads of that length.
        self._places: defaultdict[int, list[int]] = defaultdict(list)
        self._agents = Agents(lambda: _Mapping(fn))
        self._begin()

    def _begin(self) -> None:
        self._mapped: list[Event] = []  # the events of the current response
        self._has_text = False
        self._open: dict[BlockKey, list[str]] = {}

    def feed(self, event: Event) -> Iterable[Event]:
        if type(event) is Nested:
            return self._agents.feed(event)
        mapped = self._map(event)
        if mapped is None:
            return ()
        self._mapped.append(mapped)
        if type(event) is StepCompleted or type(event) is StepRestarted:
            self._begin()
        return (mapped,)

    def close(self) -> Iterable[Event]:
        return ()

    def _map(self, event: Event) -> Event | None:
        match event:
            case TextDelta():
                delta = self._call(event.delta)
                self._has_text = True
                self._open.setdefault(block_key(TextDelta, event.id, self._open), []).append(delta)
                return with_text(event, delta) if delta else None
            case TextCompleted():
                self._has_text = True
                pieces = self._open.pop(block_key(TextDelta, event.id, self._open), None)
                text = self._whole(event.text) if pieces is None else "".join(pieces)
                return msgspec.structs.replace(event, text=text)
            case MessageCompleted():
                return msgspec.structs.replace(event, message=self._message(event.message))
            case StepCompleted():
                return StepCompleted(self._step(event.result))
            case ChatCompleted():
                return ChatCompleted(self._chat(event.unparsed or event.result))
            case _ if type(event) in EVENTS:
                return event
            case _:
                raise not_an_event("map_text", event)

    def _whole(self, text: str) -> str:
        return self._call(text) if text else text

    def _call(self, text: str) -> str:
        result = self._fn(text)
        if not isinstance(result, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"map_text(fn): fn must return a string, not {shown(result)}")
        return result

    def _message(self, message: Message) -> Message:
        if self._has_text:
            return replace(message, content=fold_message(self._mapped).content)
        if isinstance(message.content, str):
            return replace(message, content=self._whole(message.content))
        mapped = (replace(p, text=self._whole(p.text)) if isinstance(p, TextPart) else p for p in message.parts)
        return replace(message, content=tuple(mapped))

    def _response(self, response: Response[Any]) -> Response[Any]:
        if response.message is None:
            return replace(response, output_text=self._whole(response.output_text))
        message = self._message(response.message)
        return replace(response, message=message, output_text=message.text)

    def _step(self, step: StepResult) -> StepResult:
        candidates = self._places[len(step.thread)]
        for old, new in map(self._steps.__getitem__, candidates):
            if old == step:
                return new
        candidates.append(len(self._steps))
        new = replace(step, response=self._response(step.response))
        self._steps.append((step, new))  # `self.thread`, which is called next, needs this
        new = replace(new, thread=self.thread(step.thread))
        self._steps[-1] = (step, new)
        return new

    def _chat(self, chat: ChatResult) -> ChatResult:
        steps = tuple(map(self._step, chat.steps))
        responses = ((old.response, new.response) for old, new in self._steps)
        final = next((new for old, new in responses if old == chat.final_response), None)
        if final is None and chat.final_response is not None:
            final = self._response(chat.final_response)
        return replace(chat, thread=self.thread(chat.thread), final_response=final, steps=steps)

    def thread(self, thread: Thread) -> Thread:
        """Replace each step's answer in `thread`. Older messages stay unchanged."""
        messages = [with_agents(message, lambda id, thread: self._agents[id].thread(thread)) for message in thread]
        end = len(messages)
        for old, new in reversed(self._steps):
            was = tuple(map(_without_agents, answer(old.response)))
            place = next((i for i in reversed(range(end)) if (_without_agents(messages[i]),) == was), None)
            if place is not None:
                agents = {key: value for key, value in messages[place].metadata.items() if key == AGENTS}
                mapped = answer(new.response)
                messages[place : place + 1] = [replace(m, metadata={**m.metadata, **agents}) for m in mapped]
                end = place
        return replace(thread, messages=tuple(messages))


def _without_agents(message: Message) -> Message:
    # Ignore the metadata in which the chat's thread keeps the threads of halted agents. The messages in steps do not
    # have it.
    if AGENTS not in message.metadata:
        return message
    return replace(message, metadata={key: value for key, value in message.metadata.items() if key != AGENTS})
