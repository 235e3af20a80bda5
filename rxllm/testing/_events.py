"""`events`: what an adapter would emit, without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from reactivex import Observable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.adapters import Fake
from rxllm.events import Event
from rxllm.values import Call, Request, ToolCall, Usage

T = TypeVar("T")


def events(
    *pieces: Any,
    thinking: str | Iterable[str] = (),
    tool_calls: Sequence[ToolCall] = (),
    usage: Usage | None = None,
    finish_reason: str | None = None,
) -> list[Event]:
    """Return the events of one response, as every adapter would emit them.

    >>> for event in events("Hel", "lo", thinking="hm"):
    ...     print(event)
    MessageStarted(message=Message('assistant', ''))
    ThinkingDelta(delta='hm', id='block_0')
    ThinkingCompleted(text='hm', signature=None, provider_data=None, id='block_0')
    TextDelta(delta='Hel', id='block_1')
    TextDelta(delta='lo', id='block_1')
    TextCompleted(text='Hello', id='block_1')
    MessageCompleted(message=Message('assistant', 'Hello'), finish_reason='stop', raw_finish_reason=None, metadata={})

    `pieces` are a turn in the script language of `Fake`: text, and whatever else in any order; its delays take no time.
    The keywords are for the usual order: thinking (a string is one delta) before the pieces; calls, usage and finish
    reason after them. An exception as the first piece is raised; a later one becomes the ``ErrorEvent``.

    Raises ``ValidationError("invalid_option")`` for a piece that `Fake` does not know.
    """
    thoughts = (thinking,) if isinstance(thinking, str) else thinking
    script = [*(("thinking", thought) for thought in thoughts), *pieces, *tool_calls]
    script += [usage] if usage is not None else []
    script += [("finish", finish_reason)] if finish_reason is not None else []
    return played(Fake(script=script).stream(Request(), Call()))


def played(source: Observable[T]) -> list[T]:
    """Return all that `source` emits in virtual time; raise its error."""
    items: list[T] = []
    errors: list[Exception] = []
    scheduler = VirtualTimeScheduler(0.0)
    source.subscribe(items.append, errors.append, scheduler=scheduler)
    scheduler.start()
    if errors:
        raise errors[0]
    return items
