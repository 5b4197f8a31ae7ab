"""The process's one Spark: started when first needed, watched, and healed when it fails."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog

from sinks.errors import SparkDied, SparkTimeout, one_line
from sinks.spark.executors import SparkPassage
from sinks.spark.jvm import Jvm, cut_off_in_silence
from topology.sink import Sink, SinkContext
from topology.spark_step import SparkStep

log = structlog.get_logger()

Result = TypeVar("Result")
_GRACE_SECONDS = 10.0  # between cancelling a job and killing the JVM it hangs in
_ANSWER_SECONDS = 5.0  # how long a JVM may take to say how it is
_START_SECONDS = 180.0  # or as long as a job, where a cluster's queue needs more patience
_HEARD_SECONDS = 2.0  # in which jobs that `close` cut off find that out


class SparkDriver:
    """Runs jobs in one Spark session, under a deadline, and heals it.

    `run` may be called from several threads. What a job raises is passed on. If Spark died
    under it, or only its context was stopped, SparkDied is raised instead, and the next job starts
    a new JVM. `jars` is asked at every start, because finding them may mean fetching them. `open`
    and `close` belong to the owner thread.
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
        self._lock = threading.Lock()  # held while Spark is started or given up
        self._numbers = itertools.count(1)
        self._jvm: Jvm | None = None
        self._starts = 0
        self._closed = False
        self._job_ended = threading.Condition()
        self._running: dict[str, tuple[str, Jvm]] = {}  # by job group: the group's name

    @property
    def parallelism(self) -> int:
        """The number of tasks that Spark runs at once: its default, which follows its executors.

        Asked of Spark each time, which is started first if need be. Raises as `run`.
        """
        return self.run(
            lambda session: int(session.sparkContext.defaultParallelism), group="parallelism"
        )

    @property
    def restarts(self) -> int:
        return max(0, self._starts - 1)

    @property
    def running(self) -> bool:
        """Whether a JVM is there; it may be broken without anyone having noticed yet."""
        jvm = self._jvm
        return jvm is not None and jvm.process.poll() is None

    def open(self) -> None:
        self._live()

    def open_beside(self) -> None:
        """Start Spark on a thread of its own. A job waits for that, and tries again if it fails."""

        def start() -> None:
            with contextlib.suppress(Exception):
                self._live()

        threading.Thread(target=start, name="spark-open", daemon=True).start()

    def run(
        self, job: Callable[[Any], Result], *, group: str, deadline_seconds: float | None = None
    ) -> Result:
        """Run `job(session)` under a job group and a deadline, from any thread.

        The deadline is the driver's unless one is given; starting Spark does not count. A job
        past it is cancelled, and ten seconds later the JVM is killed. Raises SparkTimeout then,
        SparkDied, SparkStartFailed, or what the job raises.
        """
        if deadline_seconds is None:
            deadline_seconds = self._deadline_seconds
        jvm = self._live()
        # Its own name, so that a late cancel cannot hit the next job of the group.
        job_group = f"{group}-{next(self._numbers)}"
        done, expired = threading.Event(), threading.Event()
        given = jvm, job_group, deadline_seconds, done, expired
        name = f"watch-{job_group}"
        threading.Thread(target=_watch, args=given, name=name, daemon=True).start()
        self._running[job_group] = group, jvm
        try:
            jvm.session.sparkContext.setJobGroup(job_group, group, interruptOnCancel=True)
            return job(jvm.session)
        except Exception as error:
            said = self._died(jvm, error, job_group)
            if expired.is_set():
                seconds = f"{deadline_seconds} seconds"
                raise SparkTimeout(f"Spark job '{group}' did not end within {seconds}") from error
            if said is not None:
                raise SparkDied(f"Spark died under job '{group}': {said}") from error
            raise
        finally:
            done.set()
            jvm.release()
            with self._job_ended:
                del self._running[job_group]
                self._job_ended.notify_all()

    def cancel(self, group: str) -> None:
        """Cancel what `run` is doing under this name, if anything, from any thread.

        Does not wait. A job that is cancelled raises what Spark makes of it; what is no job of
        Spark's goes on.
        """
        for job_group, (name, jvm) in self._running.copy().items():
            if name == group:
                _cancel(jvm, job_group)

    def passage(self, step: SparkStep, sink: Sink[Any], context: SinkContext) -> SparkPassage:
        return SparkPassage(self, step, sink, context)

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Stop Spark: politely for so long, then by force. May be called twice.

        Jobs under way are cut off. A Spark that is just starting is not waited for longer; it
        is stopped by whoever started it.
        """
        self._closed = True
        if not self._lock.acquire(timeout=timeout_seconds):
            return
        try:
            jvm, self._jvm = self._jvm, None
        finally:
            self._lock.release()
        if jvm is None:
            return
        with cut_off_in_silence():
            jvm.stop(timeout_seconds)
            with self._job_ended:
                self._job_ended.wait_for(lambda: not self._running, _HEARD_SECONDS)
        log.info("spark_stopped")

    def _live(self) -> Jvm:
        with self._lock:
            if self._closed:
                raise RuntimeError("the Spark driver is closed")
            if self._jvm is not None and self._jvm.process.poll() is not None:
                self._give_up(self._jvm, "its process has ended")
            return self._start() if self._jvm is None else self._jvm

    def _start(self) -> Jvm:
        jars = [str(jar) for jar in self._jars()]
        timeout_seconds = max(_START_SECONDS, self._deadline_seconds)
        jvm = Jvm.start(self._app_name, self._conf, jars, timeout_seconds)
        if self._closed:  # meanwhile
            jvm.stop(0)
            raise RuntimeError("the Spark driver is closed")
        self._jvm = jvm
        self._starts += 1
        event = "spark_started" if self._starts == 1 else "spark_restarted"
        log.info(event, restarts=self.restarts, pid=jvm.process.pid)
        return jvm

    def _died(self, jvm: Jvm, error: Exception, job_group: str) -> str | None:
        state = jvm.state(_ANSWER_SECONDS)
        if state == "well":
            return None
        if state == "mute":
            reason = f"it has not answered for {_ANSWER_SECONDS:g} seconds"
            log.warning("spark_killed", group=job_group, reason=reason)
            jvm.process.kill()
        # After that, as a Java exception's text is asked from its JVM; but before it is gone.
        said = one_line(error)
        with self._lock:
            if self._jvm is jvm:  # else another of its jobs has noticed
                self._give_up(jvm, said)
        return said

    def _give_up(self, jvm: Jvm, said: str) -> None:
        self._jvm = None
        log.warning("spark_died", error=said, ended=jvm.last_words())
        jvm.stop(timeout_seconds=0)


def _watch(
    jvm: Jvm,
    job_group: str,
    deadline_seconds: float,
    done: threading.Event,
    expired: threading.Event,
) -> None:
    """Cancel a job that passes its deadline, then kill the JVM if that did not help."""
    if done.wait(deadline_seconds):
        return
    expired.set()
    log.warning("spark_job_cancelled", group=job_group)
    _cancel(jvm, job_group)
    if not done.wait(_GRACE_SECONDS):
        reason = f"the job went on for {_GRACE_SECONDS:g} seconds after it was cancelled"
        log.warning("spark_killed", group=job_group, reason=reason)
        jvm.process.kill()


def _cancel(jvm: Jvm, job_group: str) -> None:
    """Cancel a job, on a thread: a JVM that hangs does not answer this call either."""

    def work() -> None:
        try:
            jvm.cancel(job_group)
        except Exception as error:  # noqa: BLE001 - the JVM is of no use; its job will tell
            if jvm.last_words() is None:  # else it was killed meanwhile
                log.warning("spark_cancel_failed", group=job_group, error=one_line(error))
        finally:
            jvm.release()

    threading.Thread(target=work, name=f"cancel-{job_group}", daemon=True).start()
