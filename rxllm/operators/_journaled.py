"""Note what a stream does, so that it can be run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace
from reactivex import Observable, abc

from rxllm.operators._shared.operate import operate
from rxllm.runtime import Journal, Stream, current_scope, scoped
from rxllm.values.argument_checks import check

T = TypeVar("T")

_METHODS = ("response", "tool", "begin", "finish")


def journaled(journal: Journal) -> Callable[[Observable[T]], Stream[T]]:
    """Note the responses and tools of a stream in `journal`, and answer from it what an earlier run has noted there.

    ::

        source                --start--H--e--l--l--o--Hello--end--|
        journaled(journal)    --start--H--e--l--l--o--Hello--end--|

    >>> from rxllm import Fake, ToolCall, stream, tool
    >>> @tool
    ... def double(x: int) -> int: return 2 * x
    >>> class Printer:
    ...     def response(self, path, key, events): return events.finally_action(lambda: print("the model has answered"))
    ...     def tool(self, path, key): return None
    ...     async def begin(self, path, key, call): print(call, "begins")
    ...     async def finish(self, path, key, events): print("its outcome is", events[-1].content)
    >>> events = stream(Fake(ToolCall("c0", "double", {"x": 21}), "42"), "Double 21!", tools=[double])
    >>> events.pipe(journaled(Printer())).run().result
    the model has answered
    double(x=21) begins
    its outcome is 42
    the model has answered
    ChatResult('42', completed, 2 steps, 0 tokens)

    It holds for everything below, in agents and in the calls of tools too, and changes no event. A stream that is run
    again with what its journal has noted asks no model twice for what has been answered, and runs no tool that has
    finished; operators see the answers again, so guards judge and budgets count as before. A tool that had begun and
    not finished runs again if it is ``@tool(idempotent=True)``. Otherwise it is left to the caller, as a call that
    waits for approval; ``metadata["interrupted"]`` of the call in ``pending_tool_calls`` tells why. A journal notes the
    model's answers as they came, before operators change them.

    See `rxllm.runtime.Journal` for what it implements; ``rxllm.durable`` has one that keeps to a database.

    Raises ``ValidationError("invalid_option")`` for an object that is not a journal.
    """
    fits = all(callable(getattr(journal, name, None)) for name in _METHODS) and not isinstance(journal, type)
    check("journal", journal, fits, f"an object with the methods {', '.join(_METHODS)}, see rxllm.runtime.Journal")

    def start(
        source: Observable[T], observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        scope = replace(current_scope.get(), journal=journal)
        return scoped(source, scope).subscribe(observer, scheduler=scheduler)

    return operate(start)
