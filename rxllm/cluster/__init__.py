"""Many requests on several machines, with the workers of Dask: https://distributed.dask.org.

`generate_many` has the signature and the results of ``rxllm.generate_many``, and asks from the workers of a
``distributed.Client``. Needs ``rxllm[cluster]``, here and on the workers.

===============================  =====================================================================================
where                            runs
===============================  =====================================================================================
on the workers                   the engine: adapter, `prepare`, operators, observers and retries, with keys from the
                                 environment there; a circuit breaker is one for each worker
here                             what calls share (``ops.rate_limited``, a shared `Budget`), so that it holds for all
                                 workers at once; `on_progress`, `on_event`, and how answers are parsed
===============================  =====================================================================================
"""

from rxllm.cluster._generate_many import generate_many

__all__ = ["generate_many"]
