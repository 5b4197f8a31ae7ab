"""What PySpark and py4j keep of a JVM in this process, and how they are made to let go of it.

PySpark keeps one gateway, one context and one session in class attributes and refuses to
replace them, even when the JVM behind them is dead. py4j keeps a connection for each thread,
and a thread that tells the JVM which of its objects nobody here holds any more.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

_PY4JS_MODULE = "java_gateway"
_CUT_OFF = "Exception while sending command."


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


def retire(gateway: Any) -> None:
    """Have py4j tell this JVM of no more objects: it is about to end.

    Ends the thread that told it, too, which would go on for as long as the process.
    """
    from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER  # noqa: PLC0415 - see sinks/__init__

    client = gateway._gateway_client  # noqa: SLF001
    client.is_connected = False
    client.finalizer_deque.append(SHUTDOWN_FINALIZER_WORKER)  # it takes from this end


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
    return record.module != _PY4JS_MODULE or record.getMessage() != _CUT_OFF
