"""The resident memory of processes that may be gone."""

from benchmarks import measured


def resident_mb(pid: int) -> float:
    """Megabytes that a process has of the machine's memory; 0 once it is gone."""
    try:
        return measured.resident_mb(pid)
    except (OSError, IndexError):
        return 0.0
