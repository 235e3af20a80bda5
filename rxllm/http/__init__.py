"""Send one HTTP request per subscription, and read its response.

================================  =====================================================================================
file                              contents
================================  =====================================================================================
``stream``                        the source, which sends a request and decodes the bytes of the response into events
``clients``, ``pools``            the clients and their connections, which several calls can share
``proxies``                       sends requests through the proxies that the environment sets
``reattach``                      reads the rest of an answer over a new connection, after the first one has dropped
``timeouts``                      the timeouts for connecting, for the response and for idle periods
``redirects``                     follows redirects, without sending secrets to another host
``transport_errors``              converts connection errors, such as a refused connection, to ``AdapterError``
``decompression``                 decompresses response bodies slice by slice
``secrets``, ``request_log``      remove keys from errors, URLs and logs; log each request
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
