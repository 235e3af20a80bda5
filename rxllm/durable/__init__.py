"""Keep runs in a log, so that any process can watch or continue them."""

from rxllm.durable._runs import Runs, open_runs, open_store
from rxllm.durable._store import Ending, Lease, Record, Run, Status, Store
from rxllm.session import SavedSession

__all__ = ["Ending", "Lease", "Record", "Run", "Runs", "SavedSession", "Status", "Store", "open_runs", "open_store"]
