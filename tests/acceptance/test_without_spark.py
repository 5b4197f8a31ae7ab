"""The flights of docker-compose.yml where PySpark is not installed: into Delta and PostgreSQL."""

from collections import Counter

import pytest

from deploy.chart import ROOT
from examples.flights.publish import publish
from tests.acceptance import evidence
from tests.acceptance.harness import Run
from tests.support.postgres_table import connected, rows_of
from tests.support.without import SPARK, without

pytestmark = pytest.mark.acceptance

LATE_MINUTES = 180
FLIGHTS = 20_000


def test_delta_and_postgresql_work_without_pyspark(kafka, zookeeper, postgres, tmp_path):
    publish(kafka.address, "flights", limit=FLIGHTS)
    python, environment = without(tmp_path / "packages", *SPARK)
    environment |= {
        "FLIGHTS_URL": postgres.url,
        "PGUSER": postgres.user,
        "PGPASSWORD": postgres.password,
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.address,
        "HEADRACE_ZOOKEEPER__HOSTS": zookeeper.address,
        "HEADRACE_STORAGE__WAREHOUSE": str(tmp_path / "warehouse"),
    }
    config = ("--config", str(ROOT / "deploy/compose/service.toml"))
    headrace = [*python, "-m", "headrace"]
    seen = [*headrace, "check", "deploy.compose.flights:topology", *config]
    run = [*headrace, "run", "deploy.compose.flights:topology", *config, "--until-caught-up"]
    for name, command in {"check": seen, "run": [*run, "--json"]}.items():
        ran = Run(command, tmp_path / name, environment)
        try:
            assert ran.wait() == 0, ran.output + ran.tail()
            assert ran.descendants() == {}
        finally:
            ran.end()
    account = ran.account()
    assert account["unresolved"] == 0

    topic = evidence.read_topic(kafka.address, "flights")
    found = evidence.read_table(tmp_path / "warehouse/flight_events")
    assert evidence.rows_of(found) == Counter(topic.rows.keys())
    assert evidence.dead_letters(kafka.address, "flights.dead").keys() == topic.malformed
    late = [
        (row["carrier"], row["flight"])
        for row in found.to_pylist()
        if row["kind"] == "departure" and row["delay_minutes"] >= LATE_MINUTES
    ]
    try:
        stored = rows_of(postgres, "SELECT carrier, flight FROM late_departures")
    finally:
        with connected(postgres) as connection:
            connection.execute("DROP TABLE late_departures")
    assert late
    assert Counter(late) == Counter((row["carrier"], row["flight"]) for row in stored)
