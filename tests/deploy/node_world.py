"""A release of the chart on the node of deploy/node.sh: its servers, its load, its account.

Two replicas copy a topic exactly once, in a namespace that takes restricted pods only. Kafka and
ZooKeeper run beside the node.
"""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from kazoo.client import KazooClient

from deploy.chart import CHART, ROOT
from service.devservers.process import free_ports
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance.feed import Feed
from tests.deploy.tools import tool
from tests.support.committed_messages import committed_values
from tests.support.patience import seconds, until

PARTITIONS = 6
SPACE = "pipelines"
PODS = ("orders-headrace-0", "orders-headrace-1")
REPLICAS = "--selector=app.kubernetes.io/component=replica"
IMAGE = MappingProxyType({"repository": "localhost/headrace", "tag": "dev", "pullPolicy": "Never"})
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_SECONDS = 120.0
# A file /tmp/hungry has a replica take all memory that it may have, once.
PIPELINE = """\
import asyncio
from pathlib import Path

from headrace import Record, Topology, bolt
from headrace.sinks import KafkaDeadLetters, KafkaTopicSink

hungry = Path("/tmp/hungry")


@bolt
async def derive(record: Record) -> str:
    if hungry.exists():
        hungry.unlink()
        bytearray(8 << 30)[::4096] = b"x" * (2 << 20)
    await asyncio.sleep(0.05)  # so that records are in flight whatever happens
    return (record.value or b"").decode()


topology = Topology("orders", reliability="exactly-once")
topology.dead_letters.into(KafkaDeadLetters("orders.dead"))
rows = topology.source("orders").then(derive, workers=200)
rows.into(KafkaTopicSink("orders.rows", value=str.encode), batch_seconds=0.1)
"""


def tried(name: str, *arguments: str, seconds: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool(name), *arguments], capture_output=True, text=True, check=False, timeout=seconds
    )


def command(name: str, *arguments: str, seconds: float = 240) -> str:
    """Run a tool to its end and return what it said; fail with all of it if it failed."""
    done = tried(name, *arguments, seconds=seconds)
    assert done.returncode == 0, f"{name} {arguments}\n{done.stdout}\n{done.stderr}\n{told()}"
    return done.stdout


def kubectl(*arguments: str) -> str:
    return command("kube", "kubectl", "--namespace", SPACE, *arguments)


def told() -> str:
    parts = [
        ("get", "pods", "--output=wide"),
        ("get", "events", "--sort-by=.lastTimestamp"),
        ("logs", REPLICAS, "--tail=15", "--prefix"),
        ("logs", "orders-headrace-test", "--tail=15"),
    ]
    return "\n".join(
        tried("kube", "kubectl", "--namespace", SPACE, *each, seconds=60).stdout for each in parts
    )


def restricted_namespace(name: str = SPACE) -> None:
    """Make a namespace that takes restricted pods only, and see that it does."""
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    open_pod = ("run", "open", "--image=localhost/pause:dev")
    refused = tried("kube", "kubectl", "--namespace", name, *open_pod)
    assert "violates PodSecurity" in refused.stderr


def restarts(pod: str) -> int:
    field = "jsonpath={.status.containerStatuses[0].restartCount}"
    return int(kubectl("get", "pod", pod, f"--output={field}") or 0)


def identity(pod: str) -> str:
    """The pod's UID; empty while there is none of this name."""
    found = ("get", "pod", pod, "--ignore-not-found", "--output=jsonpath={.metadata.uid}")
    return kubectl(*found)


def ready() -> int:
    field = "jsonpath={.status.readyReplicas}"
    return int(kubectl("get", "statefulset", "orders-headrace", f"--output={field}") or 0)


class World:
    reader: Sequence[tuple[str, str]] = ()  # as whom ZooKeeper is read

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = os.environ["NODE_ADDRESS"]
        (port,) = free_ports(1)
        # Pods and this process reach the broker under one address.
        properties = {"advertised.listeners": f"PLAINTEXT://{self.address}:{port}"}
        self.kafka = EmbeddedKafka(folder, port, properties=properties)
        self.zookeeper = EmbeddedZooKeeper(folder)

    def open(self) -> None:
        self.kafka.open()
        self.zookeeper.open()
        for topic in ("orders.rows", "orders.dead"):
            self.kafka.create_topic(topic, 3)
        self.feed = Feed(self.kafka)
        self.feed.create("orders", PARTITIONS)
        self.feed.start()

    def close(self) -> None:
        self.feed.stop()
        self.zookeeper.close()
        self.kafka.close()

    def values(self, config: Mapping[str, Any] = _NOTHING, **over: Any) -> str:
        """A file of values; `config` goes over the sections, the rest over the values."""
        values = {
            "topology": "orders:topology",
            "image": dict(IMAGE),
            "pipeline": {"files": {"orders.py": PIPELINE}},
            "probes": {"startup": {"periodSeconds": 1}},
            "config": {
                "pipeline": {"drain_seconds": 15},
                "kafka": {"bootstrap.servers": f"{self.address}:{self.kafka.port}"},
                "zookeeper": {
                    "hosts": f"{self.address}:{self.zookeeper.port}",
                    "session_timeout_seconds": 6,
                },
                **config,
            },
            **over,
        }
        path = self.folder / "values.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        return str(path)

    def helm(self, verb: str, *arguments: str) -> str:
        return command("helm", verb, "orders", *arguments, "--namespace", SPACE)

    def install(self, values: str) -> None:
        chart = str(ROOT / CHART)
        self.helm("install", chart, "--values", values, "--wait", "--timeout=3m")

    def published(self) -> int:
        return sum(self.feed.ends().values())

    def values_of(self, topic: str) -> Counter[str]:
        context: Any = SimpleNamespace(kafka={"bootstrap.servers": self.kafka.address})
        found = committed_values(context, topic, waits=False)
        return Counter((value or b"").decode() for value in found)

    def more_come(self) -> None:
        """Wait until every partition has rows of records that were published after this call."""
        begun = self.feed.ends()

        def all_of_them() -> bool:
            rows = self.values_of("orders.rows")
            return all(f"{topic}:{n}:{end + 5}" in rows for (topic, n), end in begun.items())

        until("work goes on in every partition", all_of_them, _SECONDS, told)

    def stored(self) -> dict[tuple[str, int], int]:
        """The offsets in ZooKeeper, read without any part of ours."""
        client = KazooClient(hosts=self.zookeeper.address, auth_data=self.reader)
        client.start(timeout=seconds(30))
        try:
            nodes = (f"/headrace/orders/orders/partition_{n}" for n in range(PARTITIONS))
            found = [json.loads(client.get(node)[0]) for node in nodes]
        finally:
            client.stop()
            client.close()
        return {("orders", number): each["offset"] for number, each in enumerate(found)}

    def account_closes(self) -> None:
        """End the load; fail unless all is written once and every offset is at its log's end."""
        self.feed.stop()
        ends = self.feed.ends()
        total = sum(ends.values())
        assert total > 100 * PARTITIONS
        until(
            "all is written",
            lambda: sum(self.values_of("orders.rows").values()) >= total,
            _SECONDS,
            told,
        )
        until("all is committed", lambda: self.stored() == ends, _SECONDS, told)
        rows = self.values_of("orders.rows")
        lost = Counter(ids(ends)) - rows
        twice = rows - Counter(ids(ends))
        assert not lost, f"{len(lost)} lost: {sorted(lost)[:5]}"
        assert not twice, f"{len(twice)} too often: {sorted(twice)[:5]}"
        assert not self.values_of("orders.dead")

    def uninstall(self) -> None:
        """Remove the release. Helm waits for the StatefulSet, not for its pods, which drain."""
        self.helm("uninstall", "--wait", "--timeout=3m")
        gone = ("get", "pods", REPLICAS, "--output=name")
        until("no pod is left", lambda: not kubectl(*gone), _SECONDS, told)


def ids(ends: Mapping[tuple[str, int], int]) -> Iterator[str]:
    for (topic, number), end in ends.items():
        for offset in range(end):
            yield f"{topic}:{number}:{offset}"


@contextmanager
def opened(folder: Path, kind: Any) -> Iterator[Any]:
    made = kind(folder)
    try:
        made.open()
        yield made
    finally:
        made.close()
