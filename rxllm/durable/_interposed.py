"""A store that calls functions before and after every call of another one: for faults, kills and counts in tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, cast

from rxllm.durable._store import Store

_Base: Any = Any if TYPE_CHECKING else object  # typed as any store; a base class would hide the methods of `store`

Hook = Callable[[str, tuple[Any, ...]], "Awaitable[object] | object"]


class Interposed(_Base):
    """A `store` with ``before(method, arguments)`` and ``after(method, arguments)`` around each of its calls.

    What `before` raises takes the place of the call. What `after` raises takes that of the result, as if the answer
    were lost; it is not called if the call fails. Both may be asynchronous. To kill the process after it has appended::

        store = Interposed(
            open_store("runs.db"),
            after=lambda method, arguments: os.kill(os.getpid(), signal.SIGKILL) if method == "append" else None,
        )
    """

    def __init__(self, store: Store, *, before: Hook | None = None, after: Hook | None = None) -> None:
        self._store, self._before, self._after = store, before, after

    def __repr__(self) -> str:
        return f"Interposed({self._store!r})"

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name.startswith("_") or not callable(method):
            return method
        asynchronous = cast("Callable[..., Awaitable[Any]]", method)

        @wraps(asynchronous)
        async def call(*args: Any, **kwargs: Any) -> Any:
            arguments = (*args, *kwargs.values())
            await _call(self._before, name, arguments)
            result = await asynchronous(*args, **kwargs)
            await _call(self._after, name, arguments)
            return result

        return call


async def _call(hook: Hook | None, method: str, arguments: tuple[Any, ...]) -> None:
    if hook is not None and isawaitable(pending := hook(method, arguments)):
        await pending
