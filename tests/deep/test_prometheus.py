import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from deploy.reference import ROOT
from service.devservers.process import free_ports
from service.devservers.servers import EmbeddedKafka
from tests.support.orders_topology import TOPIC
from tests.support.patience import seconds, until
from tests.support.prometheus import DASHBOARDS, Prometheus, expressions, filled_in, read
from tests.unit.deploy.test_alerts import ALERTS, RULES

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]

HEADRACE = Path(sys.executable).with_name("headrace")
# What a run in which all is well has no series of, and why.
NOTHING_TO_TELL = {
    "headrace_partition_source_lost_records_total": "the source lost none",
    "headrace_topology_reference_age_seconds": "the topology looks nothing up",
    "headrace_topology_failed_ticks_total": "no bolt ticks",
    "headrace_service_spark_running_state": "it writes Delta without Spark",
    "headrace_service_spark_restarts_total": "it writes Delta without Spark",
}
_CONFIG = """\
[pipeline]
commit_interval_seconds = 0.2

[kafka]
"bootstrap.servers" = "{kafka}"

[zookeeper]
hosts = "{zookeeper}"

[storage]
warehouse = "{warehouse}"

[http]
port = {port}
"""


@pytest.fixture(scope="module")
def watching(kafka, zookeeper, tmp_path_factory):
    """A Prometheus that scrapes a run which has processed what is in `watched_orders`."""
    folder = tmp_path_factory.mktemp("watched")
    port = free_ports(1)[0]
    kafka.create_topic(TOPIC, 2)
    config = folder / "service.toml"
    config.write_text(
        _CONFIG.format(
            kafka=kafka.address,
            zookeeper=zookeeper.address,
            warehouse=folder / "warehouse",
            port=port,
        )
    )
    log = folder / "headrace.log"
    with log.open("wb") as written:
        run = subprocess.Popen(
            [HEADRACE, "run", "tests.support.orders_topology:topology", "--config", config],
            stdout=written,
            stderr=written,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    prometheus = Prometheus(folder, [f"127.0.0.1:{port}"], RULES)
    try:
        with prometheus.running():
            _feed(kafka)
            written = "headrace_service_written_records_total > 0"
            until("rows are in the table", lambda: prometheus.series(written), 300, log.read_text)
            yield prometheus
    finally:
        run.terminate()
        assert run.wait(120) == 0, log.read_text()


def _feed(kafka: EmbeddedKafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.address})
    for number in range(2_000):
        value = b"{" if number % 100 == 7 else json.dumps({"id": number, "euros": 1.5}).encode()
        producer.produce(TOPIC, value, partition=number % 2)
    assert producer.flush(seconds(60)) == 0


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_run_answers_every_panel(watching, path):
    left = [
        (title, filled_in(expr))
        for title, expr in expressions(read(path))
        if not any(name in expr for name in NOTHING_TO_TELL)
    ]

    def answered() -> bool:
        left[:] = [(title, expr) for title, expr in left if not watching.series(expr)]
        return not left

    until("every panel has a series", answered, 120, lambda: "\n".join(map(str, left)))
    for _, expr in expressions(read(path)):
        watching.series(filled_in(expr))  # those too that have nothing to tell are answered


def test_what_has_nothing_to_tell_has_no_series(watching):
    for name in NOTHING_TO_TELL:
        assert watching.series(name) == 0, name


def test_the_account_closes_in_prometheus(watching):
    resolved = " + ".join(
        f"headrace_service_{how}_records_total" for how in ("written", "filtered", "dead_lettered")
    )
    until("all is resolved", lambda: watching.series(f"({resolved}) == 2000"), 120)
    assert watching.series("sum(headrace_partition_read_records_total) == 2000") == 1
    assert watching.series("sum(headrace_partition_dead_letters_total) == 20") == 1
    executed = 'headrace_topology_executed_tuples_total{step="parse"}'
    retried = "scalar(sum(headrace_partition_retried_records_total))"
    assert watching.series(f"{executed} == 2000 + {retried}") == 1


def test_healthy_run_fires_no_alert(watching):
    def rules() -> list[dict]:
        return watching.ask("rules")["groups"][0]["rules"]

    until("every rule was evaluated", lambda: all(r["health"] != "unknown" for r in rules()), 60)
    assert {rule["name"] for rule in rules()} == set(ALERTS)
    assert {rule["name"]: rule.get("lastError") for rule in rules() if rule["health"] != "ok"} == {}
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []
