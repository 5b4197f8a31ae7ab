"""Threads share few heaps, and Arrow takes its memory from them, unless it is said otherwise."""

import os
import platform
import re
import subprocess
import sys

import pytest

SHOWN = """
import ctypes, threading
import headrace
import pyarrow as pa
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
held = threading.Barrier(9)
def hold():
    libc.malloc(50_000)
    held.wait()
threads = [threading.Thread(target=hold) for _ in range(8)]
for thread in threads: thread.start()
held.wait()
print(pa.array([1] * 9).buffers()[1].size, pa.default_memory_pool().backend_name, flush=True)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""
pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc has heaps for threads"
)


def shown(**said: str) -> tuple[str, int]:
    """Arrow's pool, and how many heaps eight threads take memory from."""
    told = ("ARROW_DEFAULT_MEMORY_POOL", "MALLOC_ARENA_MAX")
    own = {name: value for name, value in os.environ.items() if name not in told}
    done = subprocess.run(
        [sys.executable, "-c", SHOWN], env=own | said, capture_output=True, text=True, check=True
    )
    return done.stdout.split()[1], len(re.findall("<heap ", done.stdout))


def test_threads_share_heaps_and_arrow_uses_them():
    pool, heaps = shown()
    assert pool == "system"
    assert heaps <= 2


def test_the_environment_has_the_last_word():
    pool, heaps = shown(ARROW_DEFAULT_MEMORY_POOL="mimalloc", MALLOC_ARENA_MAX="8")
    assert pool == "mimalloc"
    assert heaps > 2
