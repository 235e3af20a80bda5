"""HTTP calls: each subscription sends one request, reads its response as it arrives, and then closes it.

================================  =====================================================================================
file                              contents
================================  =====================================================================================
``stream``                        the source, which sends a request and decodes the bytes of the response into events
``clients``, ``pools``            clients and their connections, which several calls can share
``timeouts``                      timeouts for connecting, for responses and for idle connections
``redirects``                     redirects, and the removal of secrets before a redirect to another host
``transport_errors``              connection errors, such as a server that cannot be reached
``decompression``                 the decompression of response bodies, slice by slice
``secrets``, ``request_log``      the removal of keys from errors, URLs and logs; log lines for each request
================================  =====================================================================================
"""

from rxllm.http.clients import Clients, aiohttp_client, use_transport
from rxllm.http.stream import Decoder, Exchange, http_stream
from rxllm.http.timeouts import CONNECT_SECONDS, NO_TIMEOUTS, READ_SECONDS, WRITE_SECONDS, Timeouts
from rxllm.http.transport_errors import transport_error

__all__ = [
    "CONNECT_SECONDS",
    "NO_TIMEOUTS",
    "READ_SECONDS",
    "WRITE_SECONDS",
    "Clients",
    "Decoder",
    "Exchange",
    "Timeouts",
    "aiohttp_client",
    "http_stream",
    "transport_error",
    "use_transport",
]
