"""To the browser and back: streams of events as frames of the protocols that web clients speak.

========================  ============================================================================================
protocol                  is
========================  ============================================================================================
``"rxllm"``               rxllm's own: each event as its JSON
``"ui"``                  the Vercel UI message stream, which ``useChat`` reads
========================  ============================================================================================

`encode` and `decode` are operators between events and frames, which are JSON objects; what a client may see is decided
before, by `for_client`. `sse` writes a frame as a server-sent event, `from_sse` reads them. `from_ui` reads what
``useChat`` sends.

`streaming_response` is all of that as the response of a web server, and `Runs` keeps streams that go on without a
browser.
"""

from rxllm.web._codec import Decoder, Encoder, decode, encode, from_sse, sse
from rxllm.web._for_client import for_client
from rxllm.web._response import streaming_response
from rxllm.web._runs import Runs
from rxllm.web._ui_messages import Incoming, from_ui

__all__ = [
    "Decoder",
    "Encoder",
    "Incoming",
    "Runs",
    "decode",
    "encode",
    "for_client",
    "from_sse",
    "from_ui",
    "sse",
    "streaming_response",
]
