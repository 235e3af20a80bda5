"""Runs that outlive their process: a log of committed events, which any process may watch and go on with."""

from rxllm.durable._runs import Runs, open_runs, open_store
from rxllm.durable._sessions import SavedSession
from rxllm.durable._store import Ending, Lease, Record, Run, Status, Store

__all__ = ["Ending", "Lease", "Record", "Run", "Runs", "SavedSession", "Status", "Store", "open_runs", "open_store"]
