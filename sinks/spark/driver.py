"""The process's one Spark: started when first needed, watched, and started anew when it dies."""

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog

from sinks.errors import SparkDied, SparkTimeout
from sinks.spark.jvm import Jvm, release_connection
from sinks.spark.reasons import one_line

log = structlog.get_logger()

Result = TypeVar("Result")
_GRACE_SECONDS = 10.0  # between cancelling a job and killing the JVM it hangs in


class SparkDriver:
    """Runs jobs in one Spark session, under a deadline, and heals it.

    `run` may be called from several threads. What a job raises is passed on; if Spark died
    under it (JVM gone, context stopped), it is torn down and SparkDied raised, so that
    trying the same job again starts a new one. `jars` is asked at every start, because
    finding them may mean fetching them. `open` and `close` belong to the owner thread.
    """

    def __init__(
        self,
        app_name: str,
        conf: Mapping[str, str] | None = None,
        jars: Callable[[], Sequence[Path]] = list,
        job_deadline_seconds: float = 300.0,
    ) -> None:
        self._app_name = app_name
        self._conf = dict(conf or {})
        self._jars = jars
        self._deadline_seconds = job_deadline_seconds
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._jvm: Jvm | None = None
        self._starts = 0
        self._closed = False

    @property
    def restarts(self) -> int:
        """How often Spark has been started anew."""
        return max(0, self._starts - 1)

    @property
    def running(self) -> bool:
        """Whether a JVM is there; it may be broken without anyone having noticed yet."""
        jvm = self._jvm
        return jvm is not None and jvm.process.poll() is None

    def open(self) -> None:
        """Start Spark now rather than with the first job. Raises SparkStartFailed."""
        self._live()

    def run(self, job: Callable[[Any], Result], *, group: str) -> Result:
        """Run `job(session)` under a job group and the deadline, from any thread.

        A job past its deadline is cancelled; if it does not end within ten seconds more, the
        JVM is killed. Raises SparkTimeout then, SparkDied, SparkStartFailed, or what the job
        raises.
        """
        jvm = self._live()
        # Its own name, so that a late cancel cannot hit the next job of the group.
        job_group = f"{group}-{next(self._numbers)}"
        watch = _Watch(jvm, job_group, self._deadline_seconds)
        watch.start()
        try:
            jvm.session.sparkContext.setJobGroup(job_group, group, interruptOnCancel=True)
            return job(jvm.session)
        except Exception as error:
            # Asked now, because a Java exception's text dies with its JVM.
            said = one_line(error)
            died = not jvm.alive()
            if died:
                self._discard(jvm, said)
            if watch.expired:
                raise SparkTimeout(group, self._deadline_seconds) from error
            if died:
                raise SparkDied(group, said) from error
            raise
        finally:
            watch.done.set()
            release_connection()

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Stop Spark: politely for so long, then by force. May be called twice."""
        with self._lock:
            self._closed = True
            jvm, self._jvm = self._jvm, None
        if jvm is not None:
            jvm.stop(timeout_seconds)
            log.info("spark_stopped")

    def _live(self) -> Jvm:
        with self._lock:
            if self._jvm is None:
                if self._closed:
                    raise RuntimeError("the Spark driver is closed")
                self._jvm = Jvm.start(
                    self._app_name, self._conf, [str(jar) for jar in self._jars()]
                )
                self._starts += 1
                event = "spark_started" if self._starts == 1 else "spark_restarted"
                log.info(event, restarts=self.restarts, pid=self._jvm.process.pid)
            return self._jvm

    def _discard(self, jvm: Jvm, said: str) -> None:
        """Tear a dead Spark down, once, whichever of its jobs noticed first."""
        with self._lock:
            if self._jvm is not jvm:
                return
            self._jvm = None
            log.warning("spark_died", error=said)
            jvm.stop(timeout_seconds=0)


class _Watch(threading.Thread):
    """Cancels a job that passes its deadline, then kills the JVM if that did not help."""

    def __init__(self, jvm: Jvm, job_group: str, deadline_seconds: float) -> None:
        super().__init__(name=f"watch-{job_group}", daemon=True)
        self.done = threading.Event()
        self.expired = False
        self._jvm = jvm
        self._job_group = job_group
        self._deadline_seconds = deadline_seconds

    def run(self) -> None:
        if self.done.wait(self._deadline_seconds):
            return
        self.expired = True
        log.warning("spark_job_cancelled", group=self._job_group)
        # In a thread of its own: a JVM that hangs does not answer this call either.
        threading.Thread(target=self._cancel, daemon=True).start()
        if not self.done.wait(_GRACE_SECONDS):
            log.warning("spark_killed", group=self._job_group)
            self._jvm.kill()

    def _cancel(self) -> None:
        try:
            self._jvm.session.sparkContext.cancelJobGroup(self._job_group)
        except Exception as error:  # noqa: BLE001 - killing the JVM comes next
            log.warning("spark_cancel_failed", group=self._job_group, error=one_line(error))
        finally:
            release_connection()
