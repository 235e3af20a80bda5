"""HTTP: one request per subscription; its response is read, timed out, redirected and closed.

================================  =====================================================================================
file                              holds
================================  =====================================================================================
``stream``                        the source: a request, its response, and the events that a decoder makes of its bytes
``clients``, ``pools``            a call's client and connections, and when they are closed
``timeouts``                      the seconds of each timeout
``redirects``                     redirects, and the removal of secrets on the way to another host
``transport_errors``              errors of the connection, such as a server that cannot be reached
``decompression``                 bodies that are decompressed slice by slice
``secrets``, ``request_log``      keys, kept out of errors, URLs and logs; requests in the log
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
