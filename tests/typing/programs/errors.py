"""Both ways in which a call fails: before its first event, and after.

Prints::

    rate_limited, retry after 1.5 s
    Hel... network_error
    Hello
"""

from typing import assert_type

import rxllm
from rxllm import AdapterError, Fake, LLMError
from rxllm import operators as ops

try:
    rxllm.generate(Fake(AdapterError("rate_limited", retry_after=1.5)), "Hi", retry=False).run()
except AdapterError as error:
    print(f"{error.reason}, retry after {assert_type(error.retry_after, float | None)} s")

response = rxllm.generate(Fake(["Hel", ("error", "network_error")]), "Hi").run()
if response.error is not None:
    print(f"{response.output_text}... {assert_type(response.error, LLMError).reason}")

failing = rxllm.stream_generate(Fake(AdapterError("timeout")), "Hi", retry=False)
other = rxllm.stream_generate(Fake("Hello"), "Hi")
print(assert_type(failing.pipe(ops.fallback(other), ops.to_text()).run(), str))
