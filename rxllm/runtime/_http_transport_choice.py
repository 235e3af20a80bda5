"""Which transport rxllm's own HTTP clients use: one choice for the process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rxllm.runtime._http_client_settings import aiohttp_client, httpx2_client, httpx_client, imported
from rxllm.runtime._http_pools import CALLS
from rxllm.values.argument_checks import invalid_option, must_be

if TYPE_CHECKING:
    import httpx

VARIABLE = "RXLLM_TRANSPORT"


class Transport(NamedTuple):
    """How clients are made, how many calls share one (None is any number), and the modules that a call needs."""

    make: Callable[[], httpx.AsyncClient]
    calls: int | None = None
    modules: tuple[str, ...] = ()


_ALL = ("httpx", "encodings.idna")
_TRANSPORTS = {
    "httpx": Transport(httpx_client, CALLS, (*_ALL, "httpcore", "anyio._backends._asyncio")),
    "httpx2": Transport(httpx2_client, CALLS, (*_ALL, "httpx2", "httpcore2", "anyio._backends._asyncio")),
    "aiohttp": Transport(aiohttp_client, None, (*_ALL, "httpx_aiohttp")),
}

_chosen: str | None = None


def use_transport(name: Literal["httpx", "httpx2", "aiohttp"] | None) -> None:
    """Send requests over `name` from now on, also those of ``"provider:model"``. None undoes it.

    ::

        rxllm.runtime.use_transport("aiohttp")      # or, without a line of code: RXLLM_TRANSPORT=aiohttp

    The default is ``RXLLM_TRANSPORT``, or else httpx, whatever is installed. The choice applies to the clients that
    rxllm makes itself: at once where the model is named, and to an adapter on loops where it has made no call so far.
    It does not apply to adapters with a `client`, nor to ``"local"``.

    =============  ========================  ===========================================================================
    transport      needs                     what differs
    =============  ========================  ===========================================================================
    ``"httpx"``    nothing                   a call that is disposed while it connects ends once it is connected
    ``"httpx2"``   ``rxllm[httpx2]``         the same
    ``"aiohttp"``  ``rxllm[aiohttp]``        about half the CPU time where events arrive one by one, and many streams at
                                             once delay each other less: for services. A dispose ends at once. No SOCKS
                                             proxy: ``EngineError("invalid_engine")``. Errors have the same classes and
                                             reasons, and aiohttp's words. Mocks of httpx's transport do not see it
    =============  ========================  ===========================================================================

    Raise ``ValidationError("invalid_option")`` for another name, ``EngineError("missing_dependency")`` if its package
    is not installed.
    """
    global _chosen
    if name is not None:
        _find("name", name)
        imported(name)
    _chosen = name


def chosen_transport() -> Transport:
    """Return the transport of new clients."""
    if _chosen is not None:
        return _TRANSPORTS[_chosen]
    return _find(VARIABLE, os.environ.get(VARIABLE, "").strip().lower() or "httpx")


def _find(argument: str, name: Any) -> Transport:
    if not isinstance(name, str) or name not in _TRANSPORTS:
        raise invalid_option(argument, must_be("'httpx', 'httpx2' or 'aiohttp'", name))
    return _TRANSPORTS[name]
