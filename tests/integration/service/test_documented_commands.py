"""The operators' commands of the documentation, given as they stand, page by page.

There are a topic `orders`, two replicas of `orders:topology` that share its partitions, and the
folder that a reader would be in. A command that runs the service, or takes offsets over before it
has run, has a pipeline of its own. What the commands do is for other tests to tell; here they must
end well and say something, where the page has them and in its order.
"""

import json
import shlex
import signal
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer
from kazoo.client import KazooClient

from tests.docs.blocks import commands, is_played, name_of, played_pages
from tests.support import fork_server
from tests.support.documented_commands import SECONDS, Follower
from tests.support.patience import seconds, until
from tests.support.places import nodes_of

pytestmark = pytest.mark.integration

PARTITIONS = 4
RECORDS = 84_300  # in each partition: the pages name offsets up to 84,211
REPLICAS = ("orders-1", "orders-2")
TOPOLOGY = """\
from typing import TypedDict

from headrace import Record, Topology, bolt
from headrace.sinks import DeltaSink, KafkaDeadLetters


class Size(TypedDict):
    bytes: int


@bolt
def measure(record: Record) -> Size:
    return {{"bytes": len(record.value or b"")}}


topology = Topology("{name}", reliability="exactly-once")
topology.source("orders").then(measure).into(
    DeltaSink("sizes", schema=Size), batch_seconds=0.2
)
topology.dead_letters.into(KafkaDeadLetters("orders.dead"))
"""
CONFIG = """\
[kafka]
"bootstrap.servers" = "{kafka}"

[zookeeper]
hosts = "{zookeeper}"
"""
LOOKS = ("status", "check")
STATUS = "headrace status orders:topology --config service.toml --json"


@pytest.fixture(scope="module")
def follower(kafka, zookeeper, tmp_path_factory):
    folder = tmp_path_factory.mktemp("follower")
    kafka.create_topic("orders", PARTITIONS)
    producer = Producer({
        "bootstrap.servers": kafka.address,
        "linger.ms": 50,
        "queue.buffering.max.messages": PARTITIONS * RECORDS,
    })  # fmt: skip
    for partition in range(PARTITIONS):
        for _ in range(RECORDS):
            producer.produce("orders", b"{}", partition=partition)
    assert producer.flush(SECONDS) == 0
    for name in ("orders", "payments"):
        (folder / f"{name}.py").write_text(TOPOLOGY.format(name=name), encoding="utf-8")
    config = CONFIG.format(kafka=kafka.address, zookeeper=zookeeper.address)
    (folder / "service.toml").write_text(config, encoding="utf-8")
    return Follower(folder, fork_server.shared().launch)


@pytest.fixture(scope="module")
def replicas(follower):
    with ExitStack() as ended:
        running = []
        for name in REPLICAS:
            command = "headrace run orders:topology --config service.toml"
            running.append(follower.serve(command, HEADRACE_REPLICAS__NAME=name))
            ended.callback(running[-1].process.kill)
        until("both hold partitions", lambda: _owners(follower) == set(REPLICAS), SECONDS)
        yield
        for each in running:
            each.end(signal.SIGTERM)


@pytest.fixture
def client(zookeeper):
    with nodes_of(zookeeper) as client:
        yield client


@pytest.mark.parametrize("page", played_pages(), ids=name_of)
@pytest.mark.usefixtures("replicas")
def test_the_commands_of_a_page_work_as_they_are_written(page, follower, client):
    given = [command for command in commands(page) if is_played(command)]
    for command in given:
        if not (_only_looks(command) and command in follower.commands):  # an earlier page's
            _give(command, follower, client)
    if not all(map(_only_looks, given)):
        _leave_as_it_was(follower)


def _only_looks(command: str) -> bool:
    return any(f"headrace {words} " in command for words in LOOKS)


def _give(command: str, follower: Follower, client: KazooClient) -> None:
    match [word for word in shlex.split(command) if "=" not in word]:
        case ["curl", *_, url]:
            assert _asked(urlsplit(f"http://{url}").path, follower)
        case ["headrace", "run", *_] if "--until-caught-up" in command:
            follower.give(command, **_own_pipeline())
        case ["headrace", "run", *_]:
            running = follower.serve(command, **_own_pipeline())
            running.end(signal.SIGTERM)
        case ["headrace", "offsets", "import-storm", *_]:
            _as_storm_left_it(client, "/kafka-spouts/orders")
            follower.give(command, **_own_pipeline())
        case ["headrace", "offsets", "set" | "reset", *_]:
            with _paused(follower):
                follower.give(command)
        case ["headrace", "status", *_] if "--watch" in command:
            watching = follower.start(command)
            until("it has shown the replicas twice", lambda: watching.said.count("orders-2") > 1,
                  SECONDS, lambda: watching.errors)  # fmt: skip
            watching.end(signal.SIGINT)
        case _:
            follower.give(command)


def _own_pipeline() -> dict[str, str]:
    return {"HEADRACE_PIPELINE__NAME": f"orders-{uuid.uuid4().hex[:8]}"}


def _as_storm_left_it(client: KazooClient, path: str) -> None:
    for number in range(PARTITIONS):
        node = {
            "topology": {"id": "orders-1", "name": "orders"},
            "offset": 7,
            "partition": number,
            "broker": {"host": "k", "port": 9092},
            "topic": "orders",
        }
        client.create(f"{path}/partition_{number}", json.dumps(node).encode(), makepath=True)


def _asked(path: str, follower: Follower) -> bytes:
    """What the first replica says, whatever the port that the page's configuration has."""
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{follower.ports[0]}{path}", timeout=seconds(10)
        ) as answer:
            said: bytes = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            said = error.read()
    return said


def _facts(follower: Follower) -> dict[str, Any]:
    return json.loads(follower.give(STATUS).splitlines()[-1])


def _owners(follower: Follower) -> set[str]:
    return {each["owner"] for each in _facts(follower)["partitions"].values()}


@contextmanager
def _paused(follower: Follower) -> Iterator[None]:
    """Where the page says that the pipeline must be paused, and has not paused it itself."""
    was_paused = _facts(follower)["paused"]
    if not was_paused:
        follower.give("headrace pause orders:topology --config service.toml --why test")
    until("no transaction is open", lambda: not _open(follower), SECONDS)
    yield
    if not was_paused:
        follower.give("headrace resume orders:topology --config service.toml")


def _open(follower: Follower) -> int:
    return sum(len(each["open_txids"] or ()) for each in _facts(follower)["partitions"].values())


def _leave_as_it_was(follower: Follower) -> None:
    """Nobody is paused or drained, and both replicas hold partitions."""
    facts = _facts(follower)
    if facts["paused"]:
        follower.give("headrace resume orders:topology --config service.toml")
    for name in facts["drained"]:
        follower.give(f"headrace drain orders:topology {name} --config service.toml --undo")
    until("both hold partitions", lambda: _owners(follower) == set(REPLICAS), SECONDS)
