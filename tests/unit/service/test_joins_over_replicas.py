import json
from pathlib import Path

import pytest

from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.errors import CountsDiffer
from partition.records import Partition
from service.membership import MembershipPolicy
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes
from tests.support.pipeline import piped
from tests.support.replicas import Replica

PAGE = Path("docs/how-to/join-and-aggregate.md")
ORDERS = 120
PARTITIONS = 4
EVERY = {Partition("in", number) for number in range(PARTITIONS)}


def documented_join(rows):
    """Build the page's first topology, into a sink of ours."""
    names = {"paid": rows, "dead": MemoryDeadLetters()}
    code = PAGE.read_text().split("```python\n")[1].split("with topology_test")[0]
    code = code.replace('MemorySink("paid")', "paid")
    code = code.replace('KafkaDeadLetters("paid.dead")', "dead")
    exec(code, names)  # noqa: S102 - our own page
    return names["topology"]


class Group:
    def __init__(self, request, topics, make, beat_seconds=0.0):
        self.log = FaultyLog(dict.fromkeys(topics, PARTITIONS))
        self.nodes, self.rows, self.now, self.sent = FaultyNodes(), MemorySink("rows"), 0.0, 0
        self.replicas, self.request, self.make = [], request, make
        self.beat_seconds = beat_seconds

    def start(self):
        name, topology = f"r-{len(self.replicas)}", self.make(self.rows)
        policy = MembershipPolicy(name, self.beat_seconds)
        replica = Replica(name, topology, self.log, self.nodes, membership=policy)
        self.request.addfinalizer(replica.close)
        replica.open()
        self.replicas.append(replica)
        return replica

    def send(self, count, topics=("orders", "payments")):
        for number in range(self.sent, self.sent + count):
            for topic in topics:
                place = Partition(topic, number % PARTITIONS)
                self.log.append(place, json.dumps({"order": number, topic: 1}).encode())

    def turn(self, times, seconds=0.1):
        for _ in range(times):
            self.now += seconds
            for each in self.replicas:
                each.turn(self.now)

    def finish(self):
        """Let everything be read, unless it takes more than three minutes by their clock."""
        end = self.now + 180
        while len(self.rows.rows) < ORDERS and self.now < end:
            self.turn(1)
        return sorted(row["order"] for row in self.rows.rows)


@pytest.fixture
def shop(request):
    return Group(request, ["orders", "payments"], documented_join)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_order_meets_its_payment_whatever_the_replicas(shop, count):
    for _ in range(count):
        shop.start()
    shop.send(ORDERS)
    assert shop.finish() == list(range(ORDERS))


def test_joins_hold_while_replicas_join(shop):
    """Orders wait for their payments while their partitions change hands."""
    for _ in range(4):
        shop.start()
        shop.send(ORDERS // 4, ["orders"])
        shop.turn(5)
        shop.send(ORDERS // 4, ["payments"])
        shop.sent += ORDERS // 4
        shop.turn(60)
    assert shop.finish() == list(range(ORDERS))


@pytest.mark.parametrize(
    ("topic", "grows", "found"),
    [("orders", "before", "'orders' with 5, 'payments' with 4"),
     ("payments", "later", "'orders' with 4, 'payments' with 5")],
)  # fmt: skip
def test_a_join_ends_where_the_counts_of_its_topics_differ(shop, topic, grows, found):
    if grows == "later":
        shop.start()
        shop.turn(20)
    shop.log.add_partitions(topic, 1)
    shop.send(4)
    if grows == "before":
        shop.start()
    with pytest.raises(CountsDiffer, match=f"found {found}"):
        shop.turn(20)


def test_one_replica_waits_for_no_beat_and_a_second_for_its_share(request):
    """No test lives to see the second beat."""
    group = Group(request, ["in"], lambda rows: piped(sink=rows), beat_seconds=1000.0)
    for place in EVERY:
        group.log.append(place, b"x")
    first = group.start()
    group.turn(20, seconds=0.0)
    assert len(group.rows.rows) == PARTITIONS
    assert first.membership.view.leads
    second = group.start()
    group.turn(20, seconds=0.0)
    assert first.reader.assignment.holds == EVERY
    assert not second.reader.assignment.holds
