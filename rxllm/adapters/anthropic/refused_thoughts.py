"""Send a request once more if the server refuses its thoughts.

Newer models refuse thinking if anything before it has changed, and all models refuse thinking that was altered:
https://platform.claude.com/docs/en/build-with-claude/extended-thinking. The same request would be refused again.
The option ``refused_thoughts`` decides what happens then:

==================  ================================================================================================
option              second request
==================  ================================================================================================
``"leave_out"``     The thought that the server names and all later ones are left out.
``"drop_block"``    The server is asked to drop what it refuses, if it can. Otherwise, they are left out.
``"error"``         None. The call fails.
==================  ================================================================================================

There is never a third request. If the caller has set ``prefix_mismatch_behavior``, that setting is kept.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

from reactivex import Observable

from rxllm.adapters._requests import invalid_field
from rxllm.adapters.anthropic.frames import THOUGHTS
from rxllm.runtime import Plan, Stream, attempting, current_scope
from rxllm.values import AdapterError, Call, Message, Request, ThinkingPart

_log = logging.getLogger("rxllm")

T = TypeVar("T")
Block = dict[str, Any]
Send = Callable[[Request, Call], Stream[Any]]
BodyOf = Callable[[Request], Block]

BETA = "thinking-binding-controls-2026-08-01"
"""The beta header that ``block_binding`` needs."""

CHECKS = re.compile(r"claude-(fable-5[-.][12]|mythos-5[-.]2|(opus|sonnet|haiku)-5[-.]5)(?!\d)")
"""Matches the models that refuse thoughts if anything before them has changed."""

_REFUSED = re.compile(
    r"(messages\.(\d+)\.content\.(\d+)\b.*)?Invalid `(signature|data)` in `(redacted_)?thinking`", re.S
)
_IS_BOUND = "bound to a different conversation"
_MODES = ("leave_out", "drop_block", "error")


def resending(send: Send, body_of: BodyOf, request: Request, call: Call, provider: str = "anthropic") -> Stream[Any]:
    """Return ``send(request, call)``. If the server refuses thoughts, send once more, as the options say.

    ``body_of(request)`` returns the body that is sent.
    """
    mode = mode_of(request.options)
    if mode == "error" or not any(name_of(part, provider) for part in _parts(request.messages)):
        return send(request, call)
    return attempting(lambda: _Resending(send, body_of, request, call, provider, mode))


def mode_of(options: Mapping[str, Any]) -> Literal["leave_out", "drop_block", "error"]:
    """Return what to do if the server refuses thoughts."""
    mode = options.get("refused_thoughts") or "leave_out"
    if mode not in _MODES:
        raise invalid_field("options.refused_thoughts", mode, "'leave_out', 'drop_block' or 'error'")
    match options.get("thinking"):
        case {"block_binding": {"prefix_mismatch_behavior": "error"}}:
            return "error"
        case _:
            return mode


def leaves_out(options: Mapping[str, Any]) -> bool:
    """Return whether thoughts that the server would refuse are left out before the first request."""
    thinking = cast(Any, options.get("thinking"))
    is_set = isinstance(thinking, Mapping) and "block_binding" in thinking
    return mode_of(options) != "error" and not is_set


def with_beta(body: Block) -> Block:
    """Return `body` with the beta that ``block_binding`` needs, if `body` has that field."""
    betas = cast(list[str], body.get("betas") or [])
    if "block_binding" not in (body.get("thinking") or {}) or BETA in betas:
        return body
    return {**body, "betas": [*betas, BETA]}


def thoughts_of(body: Block) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield the place and the name of each thought in `body`. The place is the index of the message and the block."""
    for place, message in enumerate(body["messages"]):
        content = cast(list[Block], [] if isinstance(message["content"], str) else message["content"])
        for index, block in enumerate(content):
            if block["type"] in THOUGHTS:
                yield (place, index), block.get("signature") or block.get("data") or ""


def name_of(part: Any, provider: str) -> str | None:
    """Return the signature or ciphertext of a thought, or None if `part` is not a signed thought of `provider`."""
    if not isinstance(part, ThinkingPart) or (part.provider_data or {}).get("provider") != provider:
        return None
    return part.signature or (part.provider_data or {}).get("data")


def without_thoughts(request: Request, names: Set[str], provider: str) -> Request:
    """Return `request` without the thoughts that have these names."""

    def rest(message: Message) -> Message:
        if not isinstance(message.content, tuple) or not any(
            name_of(part, provider) in names for part in message.parts
        ):
            return message
        return replace(message, content=tuple(part for part in message.parts if name_of(part, provider) not in names))

    return replace(request, messages=tuple(map(rest, request.messages)))


def path_of(place: tuple[int, int]) -> str:
    """Return a place as the server writes it.

    >>> path_of((3, 0))
    'messages.3.content.0'
    """
    return "messages.{}.content.{}".format(*place)


class _Resending(Plan):
    """The requests of one subscription."""

    late = False

    def __init__(self, send: Send, body_of: BodyOf, request: Request, call: Call, provider: str, mode: str) -> None:
        self._send = send
        self._body_of = body_of
        self._request = request
        self._call = call
        self._provider = provider
        self._mode = mode
        self._left_out: list[str] = []
        self._error: AdapterError | None = None

    def source(self, attempt: int) -> Observable[Any]:
        call = self._call if attempt == 1 else current_scope.get().attempt(self._call)
        return self._send(self._request, call)

    def again(self, error: Exception, attempt: int) -> float | None:
        refusal = _REFUSED.search(error.message) if isinstance(error, AdapterError) else None
        if refusal is None or attempt > 1:
            return None
        self._error = cast(AdapterError, error)
        self._mend(self._body_of(self._request), refusal)
        _log.warning("%s refused thoughts (%s); asking again with %s", self._provider, error, self._remedy)
        if self._call.on_retry is not None:
            self._call.on_retry(error)
        return max((before_retry(self._error, 0.0) for before_retry in current_scope.get().before_retry), default=0.0)

    @property
    def _remedy(self) -> str:
        return f"{len(self._left_out)} thoughts left out" if self._left_out else '"drop_block"'

    def _mend(self, body: Block, refusal: re.Match[str]) -> None:
        thinking = body.get("thinking") or ({"type": "adaptive"} if CHECKS.search(self._request.model or "") else {})
        can_drop = thinking.get("type") in ("adaptive", "enabled") and _IS_BOUND in refusal.string
        if self._mode == "drop_block" and can_drop:
            binding = {**thinking, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
            self._request = replace(self._request, options={**self._request.options, "thinking": binding})
            return
        first = (int(refusal[2]), int(refusal[3])) if refusal[1] else (0, 0)
        refused = [(place, name) for place, name in thoughts_of(body) if place >= first]
        self._left_out = [path_of(place) for place, _ in refused]
        self._request = without_thoughts(self._request, {name for _, name in refused}, self._provider)

    def opens(self, attempt: int) -> Iterable[Any]:
        return ()

    def name(self, attempt: int) -> str:
        return f"attempt {attempt}"

    def note(self, times: Mapping[str, Any]) -> Mapping[str, Any]:
        note = {"refused_thoughts": {"error": str(self._error), "left_out": self._left_out}}
        return {**note, "retry": times} if times else note


def _parts(messages: Iterable[Message]) -> Iterator[Any]:
    return (part for message in messages if message.role == "assistant" for part in message.parts)
