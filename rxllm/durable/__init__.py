"""Runs that outlive their process: events are stored in a log, so any process can watch a run or continue it."""

from rxllm.durable._runs import Runs, open_runs, open_store
from rxllm.durable._store import Ending, Lease, Record, Run, Status, Store
from rxllm.session import SavedSession

__all__ = ["Ending", "Lease", "Record", "Run", "Runs", "SavedSession", "Status", "Store", "open_runs", "open_store"]
