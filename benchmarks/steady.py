"""Publishes orders at a steady rate, each with the millisecond at which it was made.

It runs in a process of its own: python -m benchmarks.steady KAFKA TOPIC RECORDS PER_SECOND.
The millisecond is when the record was handed to the producer, so a publisher that falls behind
its rate makes no record look late. How long it took tells whether it did.
"""

import json
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from benchmarks.job import Job
from benchmarks.orders import Orders
from benchmarks.publishing import Sender

_TICK_SECONDS = 0.01
_LINGER_MS = 5
_AT_ONCE = 10_000
_END_SECONDS = 60.0


class Publisher:
    """The process that fills a job's topic, once it is told to. Use it in a `with`."""

    def __init__(self, job: Job, per_second: int) -> None:
        self._job = job
        self._per_second = per_second
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Wait to be told."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it, wherever it is."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def start(self) -> None:
        """Begin; it may be told again and again."""
        if self._process is None:
            job = self._job
            told = [job.kafka, job.topic, str(job.records), str(self._per_second)]
            command = [sys.executable, "-m", "benchmarks.steady", *told]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def check(self) -> None:
        """Raise SystemExit if it has failed, so that nobody waits for records for ever."""
        if self._process is not None and self._process.poll():
            raise SystemExit("the publisher has failed")

    def per_second(self) -> float:
        """The rate that it has kept. Raises SystemExit if it has failed or not begun."""
        if self._process is None:
            raise SystemExit("the publisher was not started")
        self._process.wait(_END_SECONDS)
        self.check()
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        seconds: float = json.loads(self._process.stdout.read())["seconds"]
        return self._job.records / seconds


def due(seconds: float, per_second: int, records: int) -> int:
    """How many records should have been sent so long after the first."""
    return min(records, 1 + int(seconds * per_second))


def main() -> None:
    """Publish, and print how many seconds it took."""
    kafka, topic, records, per_second = (
        sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]),
    )  # fmt: skip
    orders = Orders()
    sender = Sender(kafka, topic, linger_ms=_LINGER_MS)
    done, began = 0, time.monotonic()
    while done < records:
        end = min(due(time.monotonic() - began, per_second, records), done + _AT_ONCE)
        made_at = time.time_ns() // 1_000_000
        sender.send([orders.value(number, made_at) for number in range(done, end)])
        done = end
        time.sleep(_TICK_SECONDS)
    sender.flush()
    print(json.dumps({"seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
