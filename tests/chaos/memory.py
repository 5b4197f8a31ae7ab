"""The resident memory of processes."""

import os
from pathlib import Path

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


def resident_mb(pid: int) -> float:
    """Megabytes that a process has of the machine's memory; 0 once it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_MB
    except (OSError, IndexError):
        return 0.0
