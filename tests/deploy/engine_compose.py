"""docker-compose.yml on an engine: test_compose.py runs this file inside deploy/engine.sh.

Grafana is left out: nothing stands in for its image. Its provisioning is looked at in
test_compose.py, and its dashboards are asked of a real Prometheus in tests/deep.
"""

import json
import shlex
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from deploy.chart import ROOT
from examples.flights import tables
from examples.flights.publish import MALFORMED, messages
from tests.acceptance import evidence
from tests.deploy.tools import tool
from tests.support.patience import until

pytestmark = [pytest.mark.deep, pytest.mark.timeout(460)]

SERVICES = ("kafka", "zookeeper", "postgres", "publish", "headrace", "prometheus")
LATE_MINUTES = 180
AGAIN = 5000  # flights that are published once more
EVENT = ["kind", "hour", "carrier", "flight", "airport", "other_airport", "delay_minutes"]
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
    return compose("exec", "-T", "headrace", "python", "-c", _ASK, url)


def queried(expr: str) -> list[Any]:
    answer = json.loads(asked(f"http://prometheus:9090/api/v1/query?query={expr}"))
    return [series["value"][1] for series in answer["data"]["result"]]


def late_in_postgres() -> list[str]:
    query = """SELECT extract(epoch from hour)::bigint, carrier, flight, origin, delay_minutes
               FROM late_departures"""
    client = ("psql", "--host=127.0.0.1", "--username=flights", "-tA", "-c", query)
    return sorted(
        compose("exec", "-T", "-e", "PGPASSWORD=flights", "postgres", *client).splitlines()
    )


def stored() -> dict[str, tuple[int, int]]:
    offsets = ("headrace", "status", "flights:topology", "--config",
               "/etc/headrace/service.toml", "--json")  # fmt: skip
    found = json.loads(compose("exec", "-T", "headrace", *offsets))["partitions"]
    return {name: (each["committed"], each["log_end"]) for name, each in found.items()}


def flown_of_the_year() -> pa.Table:
    """The flights of the year that left, by the CSV file alone."""
    return flown(tables.flights())


def flown(flights: pa.Table) -> pa.Table:
    return flights.filter(pc.field("dep_time").is_valid())


def wanted() -> list[dict[str, Any]]:
    left = flown_of_the_year()
    landed = left.filter(pc.field("arr_time").is_valid())
    return sorted_rows(
        pa.concat_tables(
            [
                named("departure", left, ("origin", "dest", "dep_delay")),
                named("arrival", landed, ("dest", "origin", "arr_delay")),
            ]
        )
    )


def named(kind: str, flights: pa.Table, columns: tuple[str, str, str]) -> pa.Table:
    kinds = pa.array([kind] * flights.num_rows)
    hours = pc.cast(flights["time_hour"], pa.timestamp("us", tz="UTC"))
    values = [kinds, hours, *(flights[each] for each in ("carrier", "flight", *columns))]
    return pa.table(dict(zip(EVENT, values, strict=True)))


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    """All rows, as often as they are there, in an order that does not depend on the writer."""
    return table.sort_by([(name, "ascending") for name in EVENT]).select(EVENT).to_pylist()


def late() -> list[str]:
    """What left so late, as psql would print it."""
    found = flown_of_the_year().filter(pc.field("dep_delay") >= LATE_MINUTES)
    columns = (found[each].to_pylist() for each in ("carrier", "flight", "origin", "dep_delay"))
    hours = pc.cast(pc.cast(found["time_hour"], pa.timestamp("s", tz="UTC")), pa.int64())
    lines = zip(hours.to_pylist(), *columns, strict=True)
    return sorted("|".join(map(str, line)) for line in lines)


def letters() -> dict[tuple[int, int], str]:
    """The step at which records failed, by partition and offset, as the topic of letters has it."""
    listing = ("headrace", "dead-letters", "list", "flights:topology", "--config",
               "/etc/headrace/service.toml", "--all", "--limit=10000", "--json")  # fmt: skip
    told_ = json.loads(compose("exec", "-T", "headrace", *listing).splitlines()[-1])
    assert told_["total"] == len(told_["letters"])
    found = [(each["record"], each["step"]) for each in told_["letters"]]
    assert len({(at["partition"], at["offset"]) for at, _ in found}) == len(found)
    return {(at["partition"], at["offset"]): step for at, step in found}


def malformed() -> set[tuple[int, int]]:
    ends: Counter[int] = Counter()
    found = set()
    for message in messages(tables.flights()):
        if message.key.startswith(b"malformed-"):
            found.add((message.partition, ends[message.partition]))
        ends[message.partition] += 1
    assert len(found) == MALFORMED
    return found


@pytest.fixture(scope="module", autouse=True)
def up():
    try:
        compose("up", "--no-build", "--pull=never", "--wait", "--wait-timeout=300", *SERVICES)
        yield
    finally:
        compose("--profile=spark", "down", "--volumes", "--timeout=30")


def warehouse() -> Path:
    format_ = "--format={{.Mountpoint}}"
    volume = ["docker", "volume", "inspect", format_, "headrace_warehouse"]
    done = subprocess.run(volume, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def table(folder: str = ".") -> pa.Table | None:
    found = evidence.read_table(warehouse() / folder / "flight_events")
    if not found.num_rows:
        return None
    found = found.select(EVENT)
    hours = pc.cast(found["hour"], pa.timestamp("us", "UTC"))  # Spark's INT96 has no time zone
    return found.set_column(EVENT.index("hour"), "hour", hours)


def rows(folder: str = ".") -> int:
    found = table(folder)
    return 0 if found is None else found.num_rows


def test_compose_up_writes_a_year_of_flights_to_both_tables():
    events = wanted()
    until("all events are in the table", lambda: rows() >= len(events), _SECONDS, told)
    until("all is committed", lambda: all(at == end for at, end in stored().values()), 60, told)
    found = table()
    assert found.num_rows == len(events)
    differing = [
        each for each in zip(sorted_rows(found), events, strict=True) if each[0] != each[1]
    ]
    assert not differing[:5]
    assert late_in_postgres() == late()

    # Each record of the topic left, was cancelled, or is a dead letter; there is no fourth.
    cancelled = tables.flights().num_rows - flown_of_the_year().num_rows
    dead = letters()
    assert set(dead) == malformed()
    assert set(dead.values()) == {"parse", "Enrich"}  # no flight at all; of no known carrier
    departed = pc.sum(pc.equal(found["kind"], "departure")).as_py()
    assert departed + cancelled + len(dead) == sum(end for _, end in stored().values())


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


def test_no_jvm_is_in_the_services_container():
    compose(
        "exec", "-T", "headrace", "sh", "-c", "! command -v java && ! find / -name pyspark | grep ."
    )


def test_what_the_page_says_to_look_with_answers():
    page = (ROOT / "docs/how-to/try-with-compose.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("$ docker compose exec ")]
    said = [
        compose("exec", "-T", "-e", "PGPASSWORD=flights", *shlex.split(line)[4:]) for line in lines
    ]
    status, psql = said
    assert "flights[3]" in status
    assert "ExpressJet Airlines Inc." in psql


def up_again() -> None:
    compose("up", "--no-build", "--pull=never", "--wait", "--wait-timeout=200", *SERVICES)


def exit_code(service: str) -> int:
    shown = compose("ps", "--all", "--format=json", service)
    return json.loads(shown)["ExitCode"]


def test_second_compose_up_repeats_nothing():
    before = rows(), stored()
    up_again()
    assert (rows(), stored()) == before
    compose("stop", "headrace")
    assert exit_code("headrace") == 0  # drained, not killed
    compose("down")
    up_again()
    assert (rows(), stored()) == before

    # The first flights once more: appended to one table, the same rows by key in the other.
    again = flown(tables.flights().slice(0, AGAIN))
    more = "from examples.flights.publish import publish; publish('kafka:9092', 'flights', "
    compose("exec", "-T", "headrace", "env", "PYTHONPATH=/pipeline", "python", "-c",
            more + f"limit={AGAIN}, malformed=0)")  # fmt: skip
    landed = pc.sum(pc.is_valid(again["arr_time"])).as_py()
    expected = before[0] + again.num_rows + landed
    until("the repeated flights are in the table", lambda: rows() >= expected, _SECONDS, told)
    until("all is committed", lambda: all(at == end for at, end in stored().values()), 60, told)
    ends = sum(end for _, end in stored().values())
    assert ends == sum(end for _, end in before[1].values()) + AGAIN
    assert rows() == expected
    assert late_in_postgres() == late()
    assert set(letters()) == malformed()


def test_beside_it_a_cluster_of_spark_writes_the_same_rows():
    compose("--profile=spark", "up", "--no-build", "--pull=never", "--wait", "--wait-timeout=300",
            *SERVICES, "headrace-spark")  # fmt: skip
    until("Spark has written all events", lambda: rows("spark") >= rows(), _SECONDS, told)
    found, other = table("spark"), table()
    assert sorted_rows(found) == sorted_rows(other)
    state = json.loads(asked("http://spark:8080/json/"))
    assert [worker["state"] for worker in state["workers"]] == ["ALIVE"]
    assert [app["name"] for app in state["activeapps"]] == ["headrace-flights-spark"]
