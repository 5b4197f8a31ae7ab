import os
import platform
import re
from pathlib import Path

import pytest

from headrace._startup import PACKAGES
from tests.support.python import run_python

HOME = Path(__file__).resolve().parents[3]
HEAPS = """
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
SET = ("PYTHONSAFEPATH", "ARROW_DEFAULT_MEMORY_POOL", "MALLOC_ARENA_MAX")


def python(folder, code, **environment):
    """Run code in `folder`, which is first on the path as it is for `python -c`."""
    known = {key: value for key, value in os.environ.items() if key not in SET}
    return run_python(code, check=False, cwd=folder, env={**known, **environment})


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has heaps for threads")
@pytest.mark.parametrize(
    ("environment", "pool", "is_few"),
    [
        ({}, "system", True),
        ({"ARROW_DEFAULT_MEMORY_POOL": "mimalloc", "MALLOC_ARENA_MAX": "8"}, "mimalloc", False),
    ],
)
def test_threads_share_heaps_by_default(environment, pool, is_few, tmp_path):
    said = python(tmp_path, HEAPS, **environment).stdout
    assert said.split()[1] == pool
    assert (len(re.findall("<heap ", said)) <= 2) is is_few


@pytest.mark.parametrize("name", ["sinks.py", *(f"{each}/__init__.py" for each in PACKAGES)])
def test_foreign_package_is_named_with_both_places(name, tmp_path):
    package = re.split(r"[./]", name)[0]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("print('imported')\n")
    done = python(tmp_path, "import headrace")
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: package '{package}' of Headrace is at {HOME / package}")
    assert str(tmp_path) in last
    assert "PYTHONSAFEPATH=1" in last


@pytest.mark.parametrize("is_empty", [True, False])
def test_empty_folders_and_a_safe_path_are_no_trouble(is_empty, tmp_path):
    (tmp_path / "service").mkdir()
    safe = {}
    if not is_empty:
        (tmp_path / "service" / "__init__.py").write_text("")
        safe = {"PYTHONSAFEPATH": "1"}
    assert python(tmp_path, "import headrace", **safe).returncode == 0
