"""Has all threads of this process take memory from few heaps, and Arrow from the same ones.

A heap keeps what was freed for those who use it: Arrow's own pool held on to three times what it
needed, and each thread of librdkafka's to what was fetched ahead once. Other C libraries than glibc
are left alone, and the environment has the last word. Arrow asks it once, when it is loaded.
"""

import ctypes
import os

_M_ARENA_MAX = -8  # of glibc's mallopt()
_HEAPS = 2

_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
if _mallopt is not None:
    if "MALLOC_ARENA_MAX" not in os.environ:
        _mallopt(_M_ARENA_MAX, _HEAPS)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
