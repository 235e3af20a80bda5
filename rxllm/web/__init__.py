"""Send event streams to web clients and read their requests, in three protocols.

========================  ============================================================================================
protocol                  frames
========================  ============================================================================================
``"rxllm"``               rxllm's own: each event as JSON
``"ui"``                  the Vercel UI message stream, which ``useChat`` reads
``"ag-ui"``               AG-UI 1.0, which CopilotKit and ``@ag-ui/client`` read
========================  ============================================================================================

`for_client` removes what a client must not see; then `encode` turns events into frames, which are JSON objects, and
`decode` turns frames into events. `sse` writes a frame as a server-sent event, `from_sse` reads server-sent events.
`streaming_response` does all of this as a web server's response. `Runs` keeps streams running without a browser.

`from_ui` and `from_ag_ui` read the requests of clients, and `AGUIEncoder` encodes the answer for an AG-UI client.
`AGUI` is an adapter that calls an agent over AG-UI like a model. `openai_app` serves engines over OpenAI's Chat
Completions API.
"""

from rxllm.web._ag_ui_adapter import AGUI
from rxllm.web._ag_ui_encoder import Encoder as AGUIEncoder
from rxllm.web._ag_ui_request import AGUIInput, from_ag_ui
from rxllm.web._codec import Decoder, Encoder, decode, encode
from rxllm.web._for_client import for_client
from rxllm.web._frames import from_sse, sse
from rxllm.web._openai_app import openai_app
from rxllm.web._requests import Incoming
from rxllm.web._response import streaming_response
from rxllm.web._runs import Runs
from rxllm.web._ui_request import from_ui

__all__ = [
    "AGUI",
    "AGUIEncoder",
    "AGUIInput",
    "Decoder",
    "Encoder",
    "Incoming",
    "Runs",
    "decode",
    "encode",
    "for_client",
    "from_ag_ui",
    "from_sse",
    "from_ui",
    "openai_app",
    "sse",
    "streaming_response",
]
