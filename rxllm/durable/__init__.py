"""Runs that outlive their process: the events are stored in a log, so that any process can watch and continue a run."""

from rxllm.durable._runs import Runs, open_runs, open_store
from rxllm.durable._sessions import SavedSession
from rxllm.durable._store import Ending, Lease, Record, Run, Status, Store

__all__ = ["Ending", "Lease", "Record", "Run", "Runs", "SavedSession", "Status", "Store", "open_runs", "open_store"]
