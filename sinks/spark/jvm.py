"""The JVM that PySpark talks to: started apart from the terminal, and ended by its handle.

PySpark keeps one gateway, one context and one session in class attributes and refuses to
replace them, even when the JVM behind them is dead. `Jvm.stop` clears them, so that a next
one can start in the same process.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from sinks.errors import SparkStartFailed
from sinks.spark.reasons import from_log, one_line
from sinks.spark.settings import LOG4J, settings


class Jvm:
    """One running JVM with its Spark session. Built by `start`."""

    def __init__(self, session: Any, process: "subprocess.Popen[bytes]", home: Path) -> None:
        self.session = session
        self.process = process
        self._home = home

    @classmethod
    def start(cls, app_name: str, conf: Mapping[str, str], jars: Sequence[str]) -> "Jvm":
        """Start a JVM and a session in it; takes 3 to 8 seconds. Raises SparkStartFailed.

        Runs in a thread of its own, because PySpark replaces the process's SIGINT handler
        when it is started on the main thread. The JVM gets its own process session, so
        Ctrl-C in a terminal reaches the service alone, which then drains; it ends by itself
        when this process dies, because its standard input closes.
        """
        outcome: list[Jvm | Exception] = []

        def start() -> None:
            try:
                outcome.append(cls._start(app_name, conf, jars))
            except Exception as error:  # noqa: BLE001 - raised again below
                outcome.append(error)

        thread = threading.Thread(target=start, name="spark-start", daemon=True)
        thread.start()
        thread.join()
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    @classmethod
    def _start(cls, app_name: str, conf: Mapping[str, str], jars: Sequence[str]) -> "Jvm":
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - see sinks/__init__
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415

        if SparkContext._active_spark_context is not None:  # noqa: SLF001
            raise SparkStartFailed(
                "another Spark context is active in this process; PySpark allows one"
            )
        forget()
        # Workers must run this interpreter; without it Spark takes any `python3`.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        home = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
        log4j = home / "log4j2.properties"
        log4j.write_text(LOG4J)
        properties = settings(app_name, conf, jars, log4j)
        spark_conf = SparkConf(loadDefaults=False).setAll(list(properties.items()))
        gateway = None
        with (home / "spark.log").open("wb") as output:
            try:
                launch: Any = launch_gateway
                gateway = launch(spark_conf, _apart_from_the_terminal(output))
                context = SparkContext(conf=spark_conf, gateway=gateway)
                session = SparkSession.builder.getOrCreate()
                context.setLogLevel("ERROR")
            except Exception as error:
                printed = (home / "spark.log").read_text(errors="replace")
                said = from_log(printed) or one_line(error)
                _end(gateway, home)
                raise SparkStartFailed(f"Spark did not start: {said}") from error
            finally:
                release_connection()
        return cls(session, gateway.proc, home)

    def alive(self) -> bool:
        """Whether the JVM runs and its context is not stopped. Asks the JVM, so it may hang."""
        if self.process.poll() is not None:
            return False
        try:
            return not self.session.sparkContext._jsc.sc().isStopped()  # noqa: SLF001
        except Exception:  # noqa: BLE001 - whatever it is, such a JVM is of no use
            return False

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()

    def stop(self, timeout_seconds: float) -> None:
        """End the session and the process: politely for so long, then by force."""
        if timeout_seconds > 0 and self.process.poll() is None:
            polite = threading.Thread(target=self._stop_context, daemon=True)
            polite.start()
            polite.join(timeout_seconds)
        self.process.kill()
        self.process.wait()
        _end(forget(), self._home)

    def _stop_context(self) -> None:
        with contextlib.suppress(Exception):
            self.session.stop()
        release_connection()


def forget() -> Any:
    """Clear what PySpark keeps of a JVM; returns its gateway, or None."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession, SQLContext  # noqa: PLC0415

    context: Any = SparkContext._active_spark_context  # noqa: SLF001
    gateway: Any = SparkContext._gateway  # noqa: SLF001
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
    return gateway


def release_connection() -> None:
    """Close the calling thread's connection to the JVM; the next call opens another.

    py4j keeps one per thread and leaves it to the garbage collector when the thread ends.
    """
    from pyspark import SparkContext  # noqa: PLC0415

    gateway: Any = SparkContext._gateway  # noqa: SLF001
    if gateway is None:
        return
    client = gateway._gateway_client  # noqa: SLF001
    connection = client.get_thread_connection()
    if connection is not None:
        with contextlib.suppress(ValueError):
            client.deque.remove(connection)
        with contextlib.suppress(Exception):
            connection.close()


def _apart_from_the_terminal(output: IO[bytes]) -> dict[str, Any]:
    return {"start_new_session": True, "stdout": output, "stderr": output}


def _end(gateway: Any, home: Path) -> None:
    """Close a gateway's sockets and pipe, end its process, and remove its folder."""
    if gateway is not None:
        gateway.proc.kill()
        gateway.proc.wait()
        with contextlib.suppress(Exception):
            gateway.close(keep_callback_server=True)
            gateway.shutdown_callback_server()
        with contextlib.suppress(OSError):
            gateway.proc.stdin.close()
        forget()
    shutil.rmtree(home, ignore_errors=True)
