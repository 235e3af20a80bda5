"""Send one HTTP request per subscription, and read its response.

================================  =====================================================================================
file                              contents
================================  =====================================================================================
``stream``                        the source, which sends a request and decodes the bytes of the response into events
``clients``, ``pools``            clients and their connections, which several calls can share
``reattach``                      the rest of an answer over another connection, after a connection has dropped
``timeouts``                      timeouts for connecting, for responses and for idle connections
``redirects``                     redirects, which carry no secrets to another host
``transport_errors``              connection errors, for example when a server cannot be reached
``decompression``                 code that decompresses response bodies slice by slice
``secrets``, ``request_log``      code that removes keys from errors, URLs and logs; code that logs each request
================================  =====================================================================================
"""

from rxllm.http.clients import Clients, aiohttp_client, use_transport
from rxllm.http.reattach import KeptAnswer
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
    "KeptAnswer",
    "Timeouts",
    "aiohttp_client",
    "http_stream",
    "transport_error",
    "use_transport",
]
