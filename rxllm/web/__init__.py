"""To the browser and back: streams of events as frames of the protocols that web clients speak.

========================  ============================================================================================
protocol                  is
========================  ============================================================================================
``"rxllm"``               rxllm's own: each event as its JSON
========================  ============================================================================================

`encode` and `decode` are operators between events and frames, which are JSON objects; what a client may see is decided
before, by `for_client`. `sse` writes a frame as a server-sent event, `from_sse` reads them. `openai_app` serves engines
as OpenAI's Chat Completions.
"""

from rxllm.web._codec import Decoder, Encoder, decode, encode, from_sse, sse
from rxllm.web._for_client import for_client
from rxllm.web._openai_app import openai_app

__all__ = ["Decoder", "Encoder", "decode", "encode", "for_client", "from_sse", "openai_app", "sse"]
