"""An operator's way when a partition is stuck: dashboard, status page, runbook, dead letters.

The commands are those of the pages, run as they stand in a folder whose topology is
`orders:topology`. What a panel shows is asked of a real Prometheus, by the panel's own expression.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from deploy.reference import ROOT
from service.devservers.process import free_ports
from tests.support.committed_messages import committed_values
from tests.support.patience import seconds, until
from tests.support.prometheus import Prometheus, expressions, filled_in, read
from tests.unit.deploy.test_alerts import RULES

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

HEADRACE = Path(sys.executable).with_name("headrace")
OVERVIEW = ROOT / "deploy/grafana/headrace-overview.json"
RUNBOOK = ROOT / "docs/runbooks/partition-stuck.md"
LETTERS = ROOT / "docs/how-to/handle-dead-letters.md"
ORDERS, STRANGE = 300, (41, 161)  # in all, and those in a currency that nobody knows
FLOW = """
    import json
    from headrace import Record, Reject, RetryPolicy, Topology, bolt
    from headrace.sinks import KafkaDeadLetters, KafkaTopicSink

    RATES = {rates}

    @bolt
    def parse(record: Record) -> dict:
        order = json.loads(record.value)
        if order["currency"] not in RATES:
            raise {error}(f"no such currency: {{order['currency']}}")
        return order

    topology = Topology("orders")
    parsed = topology.source("orders").then(parse, retries=RetryPolicy(limit=10_000, max_seconds=1))
    parsed.into(KafkaTopicSink("priced", value=lambda order: str(order["id"])), batch_seconds=0.1)
    topology.dead_letters.into(KafkaDeadLetters("orders.dead"))
"""
CONFIG = """
    [kafka]
    "bootstrap.servers" = "{kafka}"
    [zookeeper]
    hosts = "{zookeeper}"
    [pipeline]
    commit_interval_seconds = 0.2
    [http]
    port = {port}
"""


class Desk:
    def __init__(self, folder: Path, kafka: str, zookeeper: str) -> None:
        self.folder, self.kafka = folder, kafka
        (self.port,) = free_ports(1)
        text = textwrap.dedent(CONFIG).format(kafka=kafka, zookeeper=zookeeper, port=self.port)
        (folder / "service.toml").write_text(text)
        self._run: subprocess.Popen[bytes] | None = None

    def deploy(self, *, rates: dict[str, float], error: str) -> None:
        self.stop()
        flow = textwrap.dedent(FLOW).format(rates=rates, error=error)
        (self.folder / "orders.py").write_text(flow)
        with (self.folder / "log").open("ab") as log:
            self._run = subprocess.Popen(
                [HEADRACE, "run", "orders:topology", "--config", "service.toml"],
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.terminate()
            assert run.wait(60) == 0, self.log()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def say(self, command: str) -> str:
        done = subprocess.run(
            shlex.split(command),
            cwd=self.folder,
            env={**os.environ, "PATH": f"{HEADRACE.parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds(120),
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status.json") as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def priced(self) -> list[int]:
        """The orders that are in the sink's topic; what is at least once may be there twice."""
        return sorted({int(value) for value in committed_values(self.kafka, "priced")})


def commands(page: Path, *words: str) -> list[str]:
    """The commands of a page that have all these words."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    found = [line for line in lines if all(word in line for word in words)]
    assert found, words
    return found


def panel(title: str) -> str:
    return next(filled_in(expr) for name, expr in expressions(read(OVERVIEW)) if name == title)


def shown(prometheus: Prometheus, title: str) -> dict[str, float]:
    """What a panel shows: values by the labels that tell its series apart."""
    found = prometheus.ask("query", query=panel(title))["result"]
    return {
        ",".join(
            each["metric"][name]
            for name in ("topic", "partition", "step", "error")
            if name in each["metric"]
        ): float(each["value"][1])
        for each in found
    }


@pytest.fixture
def desk(tmp_path, kafka, zookeeper):
    kafka.create_topic("orders", 3)
    kafka.create_topic("orders.dead", 1)
    kafka.create_topic("priced", 1)
    producer = Producer({"bootstrap.servers": kafka.address})
    for number in range(ORDERS):
        currency = "XAF" if number in STRANGE else "EUR"
        order = json.dumps({"id": number, "currency": currency}).encode()
        producer.produce("orders", order, partition=1 if number in STRANGE else number % 3)
    assert producer.flush(seconds(60)) == 0
    desk = Desk(tmp_path, kafka.address, zookeeper.address)
    yield desk
    desk.stop()


def test_stuck_partition_is_found_freed_and_replayed(desk, tmp_path):
    desk.deploy(rates={"EUR": 1.0}, error="KeyError")
    prometheus = Prometheus(tmp_path, [f"127.0.0.1:{desk.port}"], RULES)
    with prometheus.running():
        # The dashboard: which partition, and what fails.
        oldest = "Oldest unresolved record by partition"
        until(
            "it is stuck", lambda: shown(prometheus, oldest).get("orders,1", 0) > 10, 120, desk.log
        )
        ages = shown(prometheus, oldest)
        assert max(ages, key=ages.__getitem__) == "orders,1"
        assert ages["orders,0"] == ages["orders,2"] == 0
        assert set(shown(prometheus, "Failed tries by step")) == {"parse"}
        # The page: why.
        reasons = json.dumps(desk.status()["failures"])
        assert "no such currency: XAF" in reasons
        # The runbook's first step: whose it is, and where it stands.
        for command in commands(RUNBOOK, "headrace status"):
            assert re.search(r"orders.*1", desk.say(command)), command
        # Its third: the record is bad, so the bolt rejects it.
        desk.deploy(rates={"EUR": 1.0}, error="Reject")
        until("it goes on", lambda: shown(prometheus, oldest).get("orders,1") == 0, 120, desk.log)
        letters = "Dead letters since the start"
        until("letters are told", lambda: shown(prometheus, letters) == {"parse,Reject": 2.0}, 60)
        until("all others are priced", lambda: len(desk.priced()) == ORDERS - len(STRANGE), 60)
        # The letters: what failed, and why.
        (every, recent) = commands(LETTERS, "dead-letters list")
        assert desk.say(every).count("no such currency: XAF") >= len(STRANGE)
        desk.say(recent)
        # Mended, they are sent again.
        desk.deploy(rates={"EUR": 1.0, "XAF": 0.0015}, error="Reject")
        rehearsed, sent = commands(LETTERS, "dead-letters replay", "--step parse")
        desk.say(rehearsed)
        assert len(desk.priced()) == ORDERS - len(STRANGE)
        desk.say(f"{sent} --yes")  # on a terminal one is asked
        until("they are priced", lambda: desk.priced() == list(range(ORDERS)), 120, desk.log)
        assert "no such currency" not in desk.say(every)
