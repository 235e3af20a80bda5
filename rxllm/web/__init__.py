"""Stream events to web clients, and read their requests.

========================  ============================================================================================
protocol                  frames
========================  ============================================================================================
``"rxllm"``               rxllm's own protocol, which sends every event as JSON
``"ui"``                  the Vercel AI SDK's UI message stream, for ``useChat``
``"ag-ui"``               AG-UI 1.0, for CopilotKit and ``@ag-ui/client``
========================  ============================================================================================

`streaming_response` returns a response for your web framework. It applies `for_client`, `encode` and `sse`.
`for_client` removes everything that clients must not see. `encode` turns events into frames, which are JSON objects.
`sse` writes a frame as a server-sent event. `Runs` keeps streams running while no browser is connected. In a Python
client, `from_sse` reads frames, and `decode` turns them back into events.

`chat` is a complete chat endpoint. `from_ui` and `from_ag_ui` parse client requests. `approval_id` returns the id of an
approval request. `AGUIEncoder` encodes the answer for an AG-UI client. With the `AGUI` adapter, an engine can use an
AG-UI agent as its model. `openai_app` serves engines over OpenAI's Chat Completions API.
"""

from rxllm.web._ag_ui_adapter import AGUI
from rxllm.web._ag_ui_encoder import Encoder as AGUIEncoder
from rxllm.web._ag_ui_request import AGUIInput, from_ag_ui
from rxllm.web._chat import chat
from rxllm.web._chat_door import ChatRequest
from rxllm.web._chat_turns import SessionRuns
from rxllm.web._codec import Decoder, Encoder, decode, encode
from rxllm.web._for_client import for_client
from rxllm.web._frames import approval_id, from_sse, sse
from rxllm.web._openai_app import openai_app
from rxllm.web._requests import Incoming
from rxllm.web._response import streaming_response
from rxllm.web._runs import Runs
from rxllm.web._ui_request import from_ui

__all__ = [
    "AGUI",
    "AGUIEncoder",
    "AGUIInput",
    "ChatRequest",
    "Decoder",
    "Encoder",
    "Incoming",
    "Runs",
    "SessionRuns",
    "approval_id",
    "chat",
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
