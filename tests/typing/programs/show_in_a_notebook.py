"""Show a stream while it runs; in a notebook the cell is redrawn in place.

Prints::

    Hello there
    stop
    Hello there
    completed
"""

from typing import Any, assert_type

import rxllm
from rxllm import ChatResult, Fake, Response, StepResult

model = Fake(["Hello ", "there"])
shown = rxllm.show(rxllm.stream_generate(model, "Hi"))
assert_type(shown, ChatResult | StepResult | Response[Any])
if isinstance(shown, Response):
    print(shown.finish_reason)
result = rxllm.show(rxllm.stream(model, "Hi"))
print(result.halted_reason if isinstance(result, ChatResult) else result.output_text)
