"""Ask a real model on this machine, print its answer as it streams, and keep the result.

The first run downloads the model (93 MB) into your user cache.
"""

import rxllm
from rxllm import TextDelta
from rxllm import operators as ops

answer = rxllm.stream_generate("local", "Name three primes.", temperature=0.0).pipe(
    ops.tap(lambda event: print(event.delta, end="", flush=True), TextDelta),  # print each piece as it arrives
    ops.to_response(),  # and fold the same stream into one result
)
response = answer.run()

print()
print()
print("text:         ", response.output_text)
print("finish reason:", response.finish_reason)
print("usage:        ", response.usage)
