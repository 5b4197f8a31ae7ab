"""Functions that run on Spark's executors, which import them from here."""

import json
import os
import signal
import sys
import time
from pathlib import Path


def doubled(task: bytes) -> bytes:
    return task + task


def told(task: bytes) -> bytes:
    """What it imports of ours, in which folder it runs, and the folders it imports from."""
    del task
    from sinks.tables import files  # noqa: PLC0415 - what executors need of ours

    return json.dumps([files.__file__, str(Path.cwd()), sys.path]).encode()


def meeting(task: bytes) -> bytes:
    """Make the first of two files, and return when the second is there."""
    mine, others = (Path(line) for line in task.decode().split("\n"))
    mine.touch()
    while not others.exists():
        time.sleep(0.01)
    return task


def killed_once(task: bytes) -> bytes:
    """With a path: whoever makes that file is killed, and whoever finds it made says so."""
    if task.startswith(b"/"):
        try:
            Path(task.decode()).touch(exist_ok=False)
        except FileExistsError:
            return b"again"
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def raising(task: bytes) -> bytes:
    raise ValueError(f"no such thing: {task.decode()}\nand more of it")
