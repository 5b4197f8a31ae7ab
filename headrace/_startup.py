"""Runs before anything else is imported: share heaps among threads, and reject foreign packages.

A heap keeps what was freed for those who use it: Arrow's own pool held on to three times what it
needed, and each thread of librdkafka's to what was fetched ahead once. Other C libraries than glibc
are left alone, and the environment has the last word. Arrow asks it once, when it is loaded.

Our packages are top-level and have common names (`service`, `sinks`, …). If a user's own folder of
that name comes first on the path, nothing would work, and not say why.
"""

import ctypes
import importlib.util
import os
from pathlib import Path

PACKAGES = ("acker", "partition", "service", "sinks", "topology", "transactions")

_M_ARENA_MAX = -8  # of glibc's mallopt()
_HEAPS = 2


def share_heaps() -> None:
    """Have all threads of this process, and Arrow, take memory from few heaps."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        if "MALLOC_ARENA_MAX" not in os.environ:
            mallopt(_M_ARENA_MAX, _HEAPS)
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def check_packages() -> None:
    """Raise ImportError, naming both places, if a package is not the sibling of this one."""
    home = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if found != home / name:
            raise ImportError(
                f"package '{name}' of Headrace is at {home / name}, but Python finds "
                f"{found or 'none'}; rename that one, or start Python with PYTHONSAFEPATH=1"
            )


share_heaps()
check_packages()
