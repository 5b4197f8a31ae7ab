"""One Spark for all files of tests that can share it: to start one costs as much as many tests."""

import http.client
import importlib.util
import json
import os
import re
import signal
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from structlog.testing import capture_logs

from service.devservers.process import HOST, EmbeddedServer
from service.jars.resolver import resolve
from sinks.spark.driver import SparkDriver
from tests.support.patience import seconds

_JARS = ("delta", "iceberg", "iceberg-jdbc")
_JOB_SECONDS = seconds(120.0)


class SharedSpark:
    """A Spark that starts when it is first needed, and ends for whoever starts one of its own.

    PySpark allows one context in a process.
    """

    def __init__(self) -> None:
        self._driver: SparkDriver | None = None

    @property
    def driver(self) -> SparkDriver:
        """The driver, with every jar that sinks and sources need. Its first job starts Spark."""
        if self._driver is None:
            self._driver = SparkDriver("tests", {}, _jars, job_deadline_seconds=_JOB_SECONDS)
        return self._driver

    def close(self) -> None:
        """End Spark; the next to ask for the driver gets a new one."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()


def stream(frame: Any, folder: Path) -> None:
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "streamed"))
    )
    query.awaitTermination()


def streamed(folder: Path) -> pa.Table:
    files = (folder / "streamed").glob("*.parquet")
    return pa.concat_tables([pq.ParquetFile(path).read() for path in files])


def _jars() -> list[Path]:
    return [jar for name in _JARS for jar in resolve(name)]


_ANSWER_SECONDS = seconds(2.0)


class _SparkDaemon(EmbeddedServer):
    """A master or a worker; the second port is its web page's."""

    port_count = 2
    main: str

    @property
    def _properties_path(self) -> Path:
        return self.state_dir / f"{self.name}.conf"

    def _prepare(self) -> None:
        self._properties_path.write_text("spark.master.rest.enabled false\n", encoding="utf-8")

    def _command(self) -> list[str]:
        spec = importlib.util.find_spec("pyspark")
        home = Path(spec.origin).parent
        return [
            "env",
            f"SPARK_HOME={home}",
            f"SPARK_LOCAL_IP={HOST}",
            "SPARK_DAEMON_MEMORY=256m",
            f"SPARK_DAEMON_JAVA_OPTS={' '.join(self.jvm_flags())}",
            str(home / "bin" / "spark-class"),
            self.main,
            *("--host", HOST, "--port", str(self._ports[0])),
            *("--webui-port", str(self._ports[1])),
            *("--properties-file", str(self._properties_path)),
            *self._arguments(),
        ]

    def _arguments(self) -> list[str]:
        return []


class SparkMaster(_SparkDaemon):
    """The master; drivers find it under `url`."""

    name = "spark-master"
    main = "org.apache.spark.deploy.master.Master"

    @property
    def url(self) -> str:
        return f"spark://{self.address}"

    def state(self) -> dict[str, Any]:
        """What its web page says; {} when it does not answer."""
        connection = http.client.HTTPConnection(HOST, self._ports[1], timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", "/json/")
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        else:
            return found
        finally:
            connection.close()

    def _answers(self) -> bool:
        state = self.state()
        return state.get("url") == self.url and state.get("status") == "ALIVE"


class SparkWorker(_SparkDaemon):
    """A worker of that master; up when the master counts it."""

    name = "spark-worker"
    main = "org.apache.spark.deploy.worker.Worker"

    def __init__(self, state_dir: Path, master: SparkMaster, cores: int = 2) -> None:
        super().__init__(state_dir)
        self._master = master
        self._cores = cores

    def _arguments(self) -> list[str]:
        folder = str(self.state_dir / "work")
        return ["--cores", str(self._cores), "--memory", "1g", "--work-dir", folder,
                self._master.url]  # fmt: skip

    def _answers(self) -> bool:
        workers = self._master.state().get("workers", [])
        return any(
            worker["port"] == self._ports[0] and worker["state"] == "ALIVE" for worker in workers
        )


PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/when-spark-fails.md"
_LINK = re.compile(r"\[(.*?)\]\(.*?\)")
_ROW = re.compile(r"^\| (.*?) \| (.*?) \| .*? \|$", re.MULTILINE)


@dataclass(frozen=True)
class Before:
    """What a driver had done before, and what is logged from then on."""

    restarts: int
    logs: list[MutableMapping[str, Any]]


@contextmanager
def healing(event: str, driver: SparkDriver) -> Iterator[Before]:
    """Have the page's event happen to a running Spark; its lines are logged, and no others."""
    driver.open()
    with capture_logs() as logs:
        yield Before(driver.restarts, logs)
    logged = [each["event"] for each in logs if each["event"].startswith("spark_")]
    expected = promised()[event]
    assert logged == expected, f"{event}: logged {logged}, the page says {expected}"


def promised() -> dict[str, list[str]]:
    """The lines of Spark's own, by event, in their order."""
    page = _LINK.sub(r"\1", PAGE.read_text(encoding="utf-8"))
    return {event: re.findall(r"`(\w+)`", lines) for event, lines in _ROW.findall(page)}


def doubled(task: bytes) -> bytes:
    return task + task


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
