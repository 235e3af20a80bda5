"""To the browser and back: streams of events as frames of the protocols that web clients speak.

========================  ============================================================================================
protocol                  is
========================  ============================================================================================
``"rxllm"``               rxllm's own: each event as its JSON
``"ui"``                  the Vercel UI message stream, which ``useChat`` reads
``"ag-ui"``               AG-UI 1.0, which CopilotKit and ``@ag-ui/client`` read
========================  ============================================================================================

`encode` and `decode` are operators between events and frames, which are JSON objects; what a client may see is decided
before, by `for_client`. `sse` writes a frame as a server-sent event, `from_sse` reads them. `streaming_response` is all
of that as the response of a web server, and `Runs` keeps streams that go on without a browser.

`from_ui` and `from_ag_ui` read what clients send, and `AGUIEncoder` is the encoder that answers those of AG-UI. `AGUI`
is an adapter: an agent that speaks AG-UI, asked like a model. `openai_app` serves engines as OpenAI's Chat Completions.
"""

from rxllm.web._ag_ui import Encoder as AGUIEncoder
from rxllm.web._ag_ui_adapter import AGUI
from rxllm.web._ag_ui_input import AGUIInput, from_ag_ui
from rxllm.web._codec import Decoder, Encoder, decode, encode, from_sse, sse
from rxllm.web._for_client import for_client
from rxllm.web._messages import Incoming
from rxllm.web._openai_app import openai_app
from rxllm.web._response import Runs, streaming_response
from rxllm.web._ui_messages import from_ui

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
