"""Redirects, which a client follows if it is told to, without the keys of the call where they lead to another host.

httpx takes ``Authorization`` out there, and leaves every other key where it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rxllm.runtime._secrets import secrets_in, secrets_of_url
from rxllm.values import AdapterError

if TYPE_CHECKING:
    import httpx

BODY_BYTES = 1 << 16
"""How much of a redirect's own body is read, so that its connection can be used again."""

_HARMLESS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
        "user-agent",
    }
)


async def followed(
    client: httpx.AsyncClient, response: httpx.Response, send: Callable[..., Awaitable[httpx.Response]]
) -> httpx.Response:
    """The answer where the redirects of `response` end; ``send(request, auth=None)`` asks there."""
    for _ in range(client.max_redirects):
        following = response.next_request
        if following is None:
            return response
        await _finish(response)
        if not _is_same_host(response.request.url, following.url):
            _strip(following, response.request)
        response = await send(following, auth=None)  # what the client's own ``auth`` added is in the headers
    if response.next_request is None:
        return response
    await response.aclose()
    raise AdapterError("invalid_request", f"the server redirects more than {client.max_redirects} times")


async def _finish(response: httpx.Response) -> None:
    count = 0
    try:
        async for data in response.aiter_raw():
            count += len(data)
            if count > BODY_BYTES:
                break
    finally:
        await response.aclose()


def _is_same_host(here: httpx.URL, there: httpx.URL) -> bool:
    is_downgrade = here.scheme == "https" and there.scheme != "https"
    return (here.host, here.port) == (there.host, there.port) and not is_downgrade


def _strip(request: httpx.Request, before: httpx.Request) -> None:
    secrets = {*secrets_of_url(str(before.url)), *secrets_in(dict(before.headers))}
    for name in [name for name in request.headers if name.lower() not in _HARMLESS]:
        del request.headers[name]
    for name, value in request.url.params.multi_items():
        if value in secrets:
            request.url = request.url.copy_remove_param(name)
