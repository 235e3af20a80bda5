"""What a process with a thousand connections needs of the system, and what it takes."""

from __future__ import annotations

import os
from pathlib import Path


def allow_many_files() -> None:
    """As many open files as this user may have."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def resident_bytes() -> int | None:
    """The memory that this process holds; None where the system does not say it in ``/proc``."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else None
