"""Send many requests from Dask workers on several machines.

`generate_many` works like ``rxllm.generate_many``, but the workers of a ``distributed.Client`` send the requests.
Install ``rxllm[cluster]`` here and on the workers (https://distributed.dask.org).

===============================  =====================================================================================
process                          work
===============================  =====================================================================================
each worker                      runs the engine, with its adapter, `prepare`, operators, observers and retries; reads
                                 keys from its own environment; has its own circuit breaker
this process                     applies limits to all workers together (``ops.rate_limited``, a shared `Budget`);
                                 calls `on_progress` and `on_event`; parses the answers
===============================  =====================================================================================
"""

from rxllm.cluster._generate_many import generate_many

__all__ = ["generate_many"]
