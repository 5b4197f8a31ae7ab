"""A Spark job one of whose tasks kills what it runs in."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WORKER, EXECUTOR = 0, 2  # how far up from a task's Python process: the JVM starts a daemon


def tripled(rows: int, mark: Path, generations: int) -> Callable[[Any], list[int]]:
    """A job that returns the threefold of 0, 1, 2, …; the first task makes the mark.

    That task kills its Python worker, or the executor whose child's child that is, by its id.
    """

    def run(session: Any) -> list[int]:
        path = str(mark)

        def each(batches: Iterator[Any]) -> Iterator[Any]:
            import os  # noqa: PLC0415 - this function runs in a process of Spark's
            import signal  # noqa: PLC0415

            import pyarrow as pa  # noqa: PLC0415
            import pyarrow.compute as pc  # noqa: PLC0415

            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                pid = os.getpid()
                for _ in range(generations):
                    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - few imports
                        pid = int(file.read().rsplit(")", 1)[1].split()[1])
                os.kill(pid, signal.SIGKILL)
            for batch in batches:
                yield pa.record_batch([pc.multiply(batch.column(0), 3)], names=["id"])

        frame = session.range(0, rows, 1, 4).mapInArrow(each, "id long")
        found: list[int] = frame.toArrow().column("id").to_pylist()
        return sorted(found)

    return run
