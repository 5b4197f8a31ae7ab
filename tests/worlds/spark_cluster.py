"""Spark's standalone cluster on 127.0.0.1, started from PySpark's own jars."""

import http.client
import importlib.util
import json
from pathlib import Path
from typing import Any

from service.devservers.server import HOST, EmbeddedServer
from tests.support.patience import seconds

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
        assert spec is not None
        assert spec.origin is not None
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
        """What `spark.master` is to be."""
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
