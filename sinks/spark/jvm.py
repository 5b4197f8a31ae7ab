"""The JVM that PySpark talks to: started apart from the terminal, and ended by its handle.

Whatever may hang in it is asked on a thread of its own, for so long and no longer.

PySpark keeps one gateway, one context and one session in class attributes and refuses to
replace them, even when the JVM behind them is dead. py4j keeps a connection for each thread,
and a thread that tells the JVM which of its objects nobody here holds any more.
"""

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from sinks.errors import LONGEST_LINE, SparkStartFailed, one_line
from sinks.run_folder import RunFolder
from sinks.spark.settings import (
    ARGUMENTS,
    LOG4J,
    LOG4J_FILE,
    LOG_STORE,
    check,
    check_installed,
    settings,
)

Result = TypeVar("Result")
State: TypeAlias = Literal["well", "mute", "gone"]
"""A JVM is well, does not answer, or is of no use: it has ended, or its context is stopped."""

_LAST_SECONDS = 5.0  # what has been killed is given so long to be gone
_TAIL_BYTES = 64 * 1024
_PRINTED = "spark.log"
# A JVM prints these when it ends itself: out of memory, of the system's memory, or crashed.
_LAST_WORDS = re.compile(
    r"^[# ]*(Terminating due to .*|There is insufficient memory .*|SIG[A-Z]+ \(.*)$", re.MULTILINE
)
_LOG_STORE = Path(__file__).with_name("ConditionalLogStore.java")


class Jvm:
    """One running JVM with its Spark session. Built by `start`."""

    def __init__(self, session: Any, gateway: Any, home: RunFolder) -> None:
        self.session = session
        self.process: subprocess.Popen[bytes] = gateway.proc
        self._gateway = gateway
        self._home = home
        # Kept here, since the session forgets it when someone stops it.
        self._context = session.sparkContext._jsc  # noqa: SLF001

    @classmethod
    def start(
        cls, app_name: str, conf: Mapping[str, str], jars: Sequence[str], timeout_seconds: float
    ) -> "Jvm":
        """Start a JVM and a session in it; takes 3 to 8 seconds. Raises SparkStartFailed.

        On a thread of its own, as PySpark replaces the SIGINT handler on the main thread. The JVM
        has its own process session, so Ctrl-C in a terminal reaches the service alone; it ends
        when this process dies, because its standard input closes.
        """
        thread, started = _apart("spark-start", partial(cls._start, app_name, conf, jars))
        with contextlib.suppress(TimeoutError):
            return started.result(timeout_seconds)
        _kill_children(thread)
        with contextlib.suppress(Exception):
            started.result(_LAST_SECONDS).stop(0)
        raise SparkStartFailed(f"Spark did not start within {timeout_seconds:g} seconds")

    @classmethod
    def _start(cls, app_name: str, conf: Mapping[str, str], jars: Sequence[str]) -> "Jvm":
        check_installed(app_name)
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - see sinks/__init__
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

        check(conf)
        if SparkContext._active_spark_context is not None:  # noqa: SLF001
            raise SparkStartFailed(
                "another Spark context is active in this process; PySpark allows one"
            )
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            raise SparkStartFailed(
                "this process was started by spark-submit; start it with Python, as it starts "
                "a JVM of its own"
            )
        forget()
        # Workers must run this interpreter; without it Spark takes any `python3`.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        # A job group is a thread's: each of ours has to be one thread in the JVM, too.
        os.environ["PYSPARK_PIN_THREAD"] = "true"
        home = RunFolder(Path(tempfile.gettempdir()), "headrace-spark")
        printed = home.open() / _PRINTED
        (home.path / LOG4J_FILE).write_text(LOG4J)
        properties = settings(app_name, conf, jars, home.path, sys.path)
        gateway = None
        with printed.open("wb") as output:
            try:
                launch: Any = launch_gateway
                # The others come by the gateway, with the context.
                shown = [pair for pair in properties.items() if pair[0].startswith(ARGUMENTS)]
                # The JVM may outlive this process for a moment, and so does its hold on the folder.
                held = () if home.lock is None else (home.lock,)
                popen = {"start_new_session": True, "stdout": output, "stderr": output}
                spark_conf = SparkConf(loadDefaults=False).setAll(shown)
                gateway = launch(spark_conf, {**popen, "pass_fds": held})
                session = _session(properties, gateway, home.path)
            except Exception as error:
                said = from_log(printed.read_text(errors="replace")) or one_line(error)
                _end(gateway, home)
                raise SparkStartFailed(f"Spark did not start: {said}") from error
        return cls(session, gateway, home)

    def state(self, timeout_seconds: float) -> State:
        """Return the state of the JVM and its context; "mute" if it does not answer in time."""
        if self.process.poll() is not None:
            return "gone"
        _, asked = _apart("spark-ask", self._ask)
        try:
            return asked.result(timeout_seconds)
        except TimeoutError:
            return "mute"

    def _ask(self) -> State:
        try:
            return "gone" if self._context.sc().isStopped() else "well"
        except Exception:  # noqa: BLE001 - whatever it is, such a JVM is of no use
            return "gone"
        finally:
            self.release()

    def release(self) -> None:
        """Close the calling thread's connection, and with it its thread in the JVM."""
        release_connection(self._gateway)

    def cancel(self, job_group: str) -> None:
        """Cancel the jobs of a group, and those that are still to come; may hang."""
        self._context.sc().cancelJobGroupAndFutureJobs(job_group)

    def last_words(self) -> str | None:
        """Return the status of the process and its own reason for ending; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)  # its connections end before it does
        status = self.process.returncode
        if status is None:
            return None
        how = f"signal {-status}" if status < 0 else f"status {status}"
        with contextlib.suppress(OSError), (self._home.path / _PRINTED).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            words = last_words(file.read().decode(errors="replace"))
            return f"{how}: {words}" if words else how
        return how

    def stop(self, timeout_seconds: float) -> None:
        """End the session and the process: politely for so long, then by force."""
        if timeout_seconds <= 0 or self.process.poll() is not None:
            _end(self._gateway, self._home)
            return
        thread, _ = _apart("spark-stop", self._stop_context)
        thread.join(timeout_seconds)
        _end(self._gateway, self._home)
        thread.join(_LAST_SECONDS)

    def _stop_context(self) -> None:
        with contextlib.suppress(Exception):
            self.session.stop()
        self.release()


def _apart(name: str, work: Callable[[], Result]) -> tuple[threading.Thread, "Future[Result]"]:
    """Start a call on a thread of its own: it may hang, or must not be made on the main thread."""
    answer: Future[Result] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            answer.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread, answer


def _session(properties: Mapping[str, str], gateway: Any, home: Path) -> Any:
    from pyspark import SparkConf, SparkContext, SparkFiles  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    try:
        spark_conf = SparkConf(loadDefaults=False).setAll(list(properties.items()))
        context = SparkContext(conf=spark_conf, gateway=gateway)
        session = SparkSession.builder.getOrCreate()
        context.setLogLevel("ERROR")
        if LOG_STORE in properties.values():
            _add_log_store(context, home / "headrace-log-store.jar")
        if python := properties.get("spark.pyspark.python"):
            context.pythonExec = python
        with contextlib.suppress(ValueError):  # each context puts a folder there, for good
            sys.path.remove(SparkFiles.getRootDirectory())
        server: Any = context._accumulatorServer  # noqa: SLF001
        server.handle_error = lambda *_: None  # it would print a traceback when the JVM goes
        return session
    finally:
        release_connection(gateway)


def _add_log_store(context: Any, jar: Path) -> None:
    """Compile the log store, by Janino, which Spark brings, and give it to driver and executors."""
    jvm = context._jvm  # noqa: SLF001
    loader = jvm.Thread.currentThread().getContextClassLoader()
    if loader.getResource("io/delta/storage/LogStore.class") is None:
        return  # no Delta, no log
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_LOG_STORE.read_text())
    with zipfile.ZipFile(jar, "w") as made:
        for name, code in compiler.getBytecodes().items():
            made.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    context._jsc.addJar(str(jar))  # noqa: SLF001


def _kill_children(thread: threading.Thread) -> None:
    """Kill what a thread has started: PySpark tells of its JVM only once it has answered."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/self/task/{thread.native_id}/children").read_text()
        for pid in children.split():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)


def _end(gateway: Any, home: RunFolder) -> None:
    """End a gateway's process, close its sockets and its pipe, and remove its folder."""
    if gateway is not None:
        from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER  # noqa: PLC0415

        # End the thread that tells the JVM of objects: it would go on as long as this process.
        client = gateway._gateway_client  # noqa: SLF001
        client.is_connected = False
        client.finalizer_deque.append(SHUTDOWN_FINALIZER_WORKER)  # it takes from this end
        gateway.proc.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            gateway.proc.wait(_LAST_SECONDS)
        with contextlib.suppress(Exception):
            gateway.close(keep_callback_server=True)
            gateway.shutdown_callback_server()
        with contextlib.suppress(OSError):
            gateway.proc.stdin.close()
        forget(gateway)
    home.close()


def forget(gateway: Any = None) -> None:
    """Clear what PySpark keeps of its JVM, or, given a gateway, only if that is the JVM's."""
    from pyspark import SparkContext  # noqa: PLC0415 - see sinks/__init__
    from pyspark.sql import SparkSession, SQLContext  # noqa: PLC0415

    if gateway is not None and SparkContext._gateway is not gateway:  # noqa: SLF001
        return
    context: Any = SparkContext._active_spark_context  # noqa: SLF001
    if context is not None:
        context._jsc = None  # noqa: SLF001 - so that its own stop() asks no dead JVM
        with contextlib.suppress(Exception):
            context.stop()
    with SparkContext._lock:  # noqa: SLF001
        SparkContext._active_spark_context = None  # noqa: SLF001
        SparkContext._gateway = None  # noqa: SLF001
        SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    SparkSession._activeSession = None  # noqa: SLF001
    SQLContext._instantiatedContext = None  # noqa: SLF001


def release_connection(gateway: Any) -> None:
    """Close the calling thread's connection to the JVM; the next call opens another.

    py4j keeps one per thread and leaves it to the garbage collector when the thread ends.
    """
    client = gateway._gateway_client  # noqa: SLF001
    connection = client.get_thread_connection()
    if connection is not None:
        with contextlib.suppress(ValueError):
            client.deque.remove(connection)
        with contextlib.suppress(Exception):
            connection.close()


@contextlib.contextmanager
def cut_off_in_silence() -> Iterator[None]:
    """Keep py4j from logging, with a traceback, each call that the end of the JVM cuts off.

    It tells the root logger, not one of its own whose level could be set. What the calls raise
    is raised as ever.
    """
    root = logging.getLogger()
    root.addFilter(_is_worth_telling)
    try:
        yield
    finally:
        root.removeFilter(_is_worth_telling)


def _is_worth_telling(record: logging.LogRecord) -> bool:
    is_py4js = record.module == "java_gateway"
    return not is_py4js or record.getMessage() != "Exception while sending command."


def from_log(log: str) -> str | None:
    """Return the first line of a JVM's output that names an exception, or None."""
    lines = [line.strip() for line in log.splitlines()]
    named = (line for line in lines if "Exception" in line or "Error" in line)
    return next((line[:LONGEST_LINE] for line in named if not line.startswith("at ")), None)


def last_words(log: str) -> str | None:
    """Return why a JVM has ended itself, by its output; None if it does not say, as when killed."""
    found = _LAST_WORDS.findall(log)
    return str(found[-1])[:LONGEST_LINE].strip() if found else None
