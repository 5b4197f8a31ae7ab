"""docker-compose.yml on an engine: test_compose.py runs this file inside deploy/engine.sh.

Grafana is left out: nothing stands in for its image. Its provisioning is looked at in
test_compose.py, and its dashboards are asked of a real Prometheus in tests/deep.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from deploy.chart import ROOT
from examples.flights import tables
from examples.flights.publish import MALFORMED
from tests.acceptance.processes import until
from tests.deploy.delta_rows import delta_rows
from tests.deploy.tools import tool

pytestmark = [pytest.mark.deep, pytest.mark.timeout(460)]

SERVICES = ("kafka", "zookeeper", "postgres", "spark", "spark-worker", "publish", "headrace",
            "prometheus")  # fmt: skip
LATE_MINUTES = 180
_SECONDS = 240.0
_ASK = "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1]).read().decode())"


def compose(*arguments: str, seconds: float = 400) -> str:
    done = subprocess.run(
        [tool("docker-compose"), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}\n{told()}"
    return done.stdout


def told() -> str:
    asked = (("ps", "--all"), ("logs", "--tail=25", "--no-color"))
    return "\n".join(
        subprocess.run(
            [tool("docker-compose"), *each], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout
        for each in asked
    )


def asked(url: str) -> str:
    """What a service answers to another one."""
    return compose("exec", "-T", "headrace", "python", "-c", _ASK, url)


def queried(expr: str) -> list[Any]:
    """What Prometheus answers: the values of all series."""
    answer = json.loads(asked(f"http://prometheus:9090/api/v1/query?query={expr}"))
    return [series["value"][1] for series in answer["data"]["result"]]


def in_postgres(query: str) -> str:
    client = ("psql", "--host=127.0.0.1", "--username=flights", "-tA", "-c", query)
    return compose("exec", "-T", "-e", "PGPASSWORD=flights", "postgres", *client).strip()


def stored() -> dict[str, tuple[int, int]]:
    """Committed offset and log's end of each partition."""
    offsets = ("headrace", "offsets", "show", "flights:topology", "--config",
               "/etc/headrace/service.toml", "--json")  # fmt: skip
    found = json.loads(compose("exec", "-T", "headrace", *offsets))["partitions"]
    return {name: (each["committed"], each["log_end"]) for name, each in found.items()}


def events() -> int:
    """How many events the year has, by the CSV file alone."""
    flown = tables.flights().filter(pc.field("dep_time").is_valid())
    return flown.num_rows + flown.num_rows - flown["arr_time"].null_count


def late() -> int:
    """How many flights left so late."""
    rows: pa.Table = tables.flights().filter(pc.field("dep_delay") >= LATE_MINUTES)
    return rows.group_by(["time_hour", "carrier", "flight", "origin"]).aggregate([]).num_rows


@pytest.fixture(scope="module", autouse=True)
def up() -> Iterator[None]:
    try:
        compose("up", "--no-build", "--pull=never", "--wait", "--wait-timeout=300", *SERVICES)
        yield
    finally:
        compose("down", "--volumes", "--timeout=30")


def warehouse() -> Path:
    format_ = "--format={{.Mountpoint}}"
    volume = ["docker", "volume", "inspect", format_, "headrace_warehouse"]
    done = subprocess.run(volume, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def rows() -> int:
    found = delta_rows(warehouse() / "flight_events", ["flight"])
    return 0 if found is None else found.num_rows


def test_one_command_brings_a_year_of_flights_into_both_tables():
    until("all events are in the table", lambda: rows() >= events(), _SECONDS, told)
    until("all is committed", lambda: all(at == end for at, end in stored().values()), 60, told)
    assert rows() == events()
    assert int(in_postgres("SELECT count(*) FROM late_departures")) == late()
    assert sum(end for _, end in stored().values()) == tables.flights().num_rows + MALFORMED


def test_prometheus_scrapes_it_and_knows_the_alerts():
    until("lag is scraped", lambda: queried("sum(headrace_partition_lag_records)") == ["0"], 60)
    assert queried("up{job=%22headrace%22}") == ["1"]
    letters = "sum(headrace_service_dead_lettered_records_total)"
    assert queried(letters) == [str(MALFORMED)]
    until("all rules are evaluated", lambda: set(health_of_rules()) == {"ok"}, 60, told)


def health_of_rules() -> list[str]:
    groups = json.loads(asked("http://prometheus:9090/api/v1/rules"))["data"]["groups"]
    found = [rule["health"] for group in groups for rule in group["rules"]]
    assert found
    return found


def test_the_table_was_committed_by_executors_of_the_cluster():
    state = json.loads(asked("http://spark:8080/json/"))
    assert [worker["state"] for worker in state["workers"]] == ["ALIVE"]
    assert [app["name"] for app in state["activeapps"]]


def test_the_same_command_again_repeats_nothing_and_a_restart_goes_on_where_it_was():
    before = rows(), stored()
    compose("up", "--no-build", "--pull=never", "--wait", "--wait-timeout=200", *SERVICES)
    compose("restart", "headrace")
    compose("up", "--no-build", "--pull=never", "--wait", "--wait-timeout=200", *SERVICES)
    assert (rows(), stored()) == before
