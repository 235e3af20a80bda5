"""Proxies that the environment sets, and the hosts that ``NO_PROXY`` exempts from them.

httpx rejects some of the forms that other programs accept in ``NO_PROXY``, and ignores networks:

=======================  ==============================================================
entry                    hosts that are called directly
=======================  ==============================================================
``*``                    all hosts
``host``, ``host:80``    the host and its subdomains, on all ports or on one port
``.host``, ``*.host``    the subdomains of the host
``::1``, ``[::1]:80``    one address
``fd00::/8``             the addresses of a network
``http://host``          the host and its subdomains, but only for this scheme
=======================  ==============================================================
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def _settings() -> dict[str, str]:
    from urllib.request import getproxies  # slow to import

    return getproxies()


def proxies() -> dict[str, str]:
    """Return the URLs of the proxies. The keys are ``http``, ``https`` and ``all``."""
    found = {scheme: url for scheme, url in _settings().items() if scheme in ("http", "https", "all") and url}
    return {scheme: url if "://" in url else f"http://{url}" for scheme, url in found.items()}


def proxy_for(url: str) -> str | None:
    """Return the proxy that a request to `url` goes through, or None if there is none."""
    found = proxies()
    proxy = found.get(urlsplit(url).scheme) or found.get("all")
    return None if proxy is None or is_exempt(url) else proxy


def is_exempt(url: str) -> bool:
    """Return whether requests to `url` go directly to the host."""
    target = urlsplit(url)
    try:
        port = target.port or _PORTS.get(target.scheme)
    except ValueError:  # the call fails because of the port, with or without a proxy
        return False
    entries = _settings().get("no", "").lower().split(",")
    return any(_matches(entry.strip(), target.scheme, target.hostname or "", port) for entry in entries)


def _matches(entry: str, scheme: str, host: str, port: int | None) -> bool:
    own_scheme, _, place = entry.rpartition("://")
    name, own_port = place, ""
    if place.count(":") == 1 or "]:" in place:  # other colons belong to an IPv6 address
        name, _, own_port = place.rpartition(":")
    if own_scheme not in ("", "all", scheme) or own_port not in ("", str(port)) or not name:
        return False
    try:
        return ip_address(host) in ip_network(name.replace("[", "").replace("]", ""), strict=False)
    except ValueError:  # one of them is a name
        return name in ("*", host) or host.endswith(f".{name.removeprefix('*').removeprefix('.')}")


class ProxyTransport:
    """A transport that sends requests through a proxy, except for those to exempt hosts."""

    def __init__(self, direct: Any, proxied: Any) -> None:
        self._direct, self._proxied = direct, proxied

    async def handle_async_request(self, request: Any) -> Any:
        transport = self._direct if is_exempt(str(request.url)) else self._proxied
        return await transport.handle_async_request(request)

    async def aclose(self) -> None:
        try:
            await self._direct.aclose()
        finally:
            await self._proxied.aclose()

    async def __aenter__(self) -> ProxyTransport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def proxy_mounts(new_transport: Callable[[str | None], Any]) -> dict[str, Any]:
    """Return a client's `mounts`. `new_transport` makes a transport that uses the given proxy, or none."""
    return {
        f"{scheme}://": ProxyTransport(new_transport(None), new_transport(url)) for scheme, url in proxies().items()
    }
