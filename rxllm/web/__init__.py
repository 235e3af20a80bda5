"""To the browser and back: streams of events as frames of the protocols that web clients speak.

========================  ============================================================================================
protocol                  is
========================  ============================================================================================
``"rxllm"``               rxllm's own: each event as its JSON
``"ag-ui"``               AG-UI 1.0, which CopilotKit and ``@ag-ui/client`` read
========================  ============================================================================================

`encode` and `decode` are operators between events and frames, which are JSON objects; what a client may see is decided
before, by `for_client`. `sse` writes a frame as a server-sent event, `from_sse` reads them. `AGUI` is an adapter: an
agent that speaks AG-UI, asked like a model. `from_ag_ui` reads what AG-UI's clients send, and `AGUIEncoder`
is the encoder that answers them.
"""

from rxllm.web._ag_ui import Encoder as AGUIEncoder
from rxllm.web._ag_ui_adapter import AGUI
from rxllm.web._ag_ui_input import AGUIInput, from_ag_ui
from rxllm.web._codec import Decoder, Encoder, decode, encode, from_sse, sse
from rxllm.web._for_client import for_client
from rxllm.web._messages import Incoming

__all__ = [
    "AGUI",
    "AGUIEncoder",
    "AGUIInput",
    "Decoder",
    "Encoder",
    "Incoming",
    "decode",
    "encode",
    "for_client",
    "from_ag_ui",
    "from_sse",
    "sse",
]
