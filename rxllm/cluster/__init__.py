"""Many requests from several machines, which are Dask workers: https://distributed.dask.org.

`generate_many` has the signature and the results of ``rxllm.generate_many``, and sends requests from the workers of a
``distributed.Client``. Needs ``rxllm[cluster]``, here and on the workers.

===============================  =====================================================================================
process                          runs
===============================  =====================================================================================
each worker                      the engine: adapter, `prepare`, operators, observers and retries, with keys from the
                                 worker's environment; each worker has its own circuit breaker
this process                     limits for all workers together (``ops.rate_limited``, a shared `Budget`);
                                 `on_progress`, `on_event`, and the parsing of answers
===============================  =====================================================================================
"""

from rxllm.cluster._generate_many import generate_many

__all__ = ["generate_many"]
