"""The documented join over several replicas: what belongs together is read by one process."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.errors import CountsDiffer
from partition.records import Partition
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes
from tests.support.replicas import Replica

PAGE = Path("docs/how-to/join-and-aggregate.md")
ORDERS = 400
PARTITIONS = 4


def documented_join(rows):
    """Build the page's first topology, into a sink of ours."""
    names = {"paid": rows, "dead": MemoryDeadLetters()}
    code = PAGE.read_text().split("```python\n")[1].split("with topology_test")[0]
    code = code.replace('MemorySink("paid")', "paid").replace(
        'KafkaDeadLetters("paid.dead")', "dead"
    )
    exec(code, names)  # noqa: S102 - our own page
    return names["topology"]


class Shop:
    """Replicas of the join, and the orders and payments that they read."""

    def __init__(self, closing):
        self.log = FaultyLog({"orders": PARTITIONS, "payments": PARTITIONS})
        self.nodes, self.rows, self.now, self.sent = FaultyNodes(), MemorySink("paid"), 0.0, 0
        self.replicas, self.closing = [], closing

    def start(self):
        name = f"r-{len(self.replicas)}"
        replica = Replica(name, documented_join(self.rows), self.log, self.nodes)
        self.closing.callback(replica.close)
        replica.open()
        self.replicas.append(replica)

    def send(self, count, topics=("orders", "payments")):
        for number in range(self.sent, self.sent + count):
            for topic in topics:
                place = Partition(topic, number % PARTITIONS)
                self.log.append(place, json.dumps({"order": number, topic: 1}).encode())

    def turn(self, times):
        for _ in range(times):
            self.now += 0.1
            for each in self.replicas:
                each.turn(self.now)

    def finish(self):
        """Let everything be read, unless it takes more than three minutes by their clock."""
        end = self.now + 180
        while len(self.rows.rows) < ORDERS and self.now < end:
            self.turn(1)
        return sorted(row["order"] for row in self.rows.rows)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_order_meets_its_payment_whatever_the_replicas(count):
    with ExitStack() as closing:
        shop = Shop(closing)
        for _ in range(count):
            shop.start()
        shop.send(ORDERS)
        assert shop.finish() == list(range(ORDERS))


def test_joins_hold_while_replicas_join():
    """Orders wait for their payments while their partitions change hands."""
    with ExitStack() as closing:
        shop = Shop(closing)
        for _ in range(4):
            shop.start()
            shop.send(ORDERS // 4, ["orders"])
            shop.turn(5)
            shop.send(ORDERS // 4, ["payments"])
            shop.sent += ORDERS // 4
            shop.turn(100)
        assert shop.finish() == list(range(ORDERS))


def test_a_join_of_topics_with_other_counts_does_not_start():
    with ExitStack() as closing:
        shop = Shop(closing)
        shop.log.add_partitions("orders", 1)
        shop.send(4)
        shop.start()
        with pytest.raises(CountsDiffer, match="found 'orders' with 5, 'payments' with 4"):
            shop.turn(20)
        assert shop.rows.rows == []


def test_a_join_ends_when_one_of_its_topics_grows():
    with ExitStack() as closing:
        shop = Shop(closing)
        shop.start()
        shop.turn(20)
        shop.log.add_partitions("payments", 2)
        with pytest.raises(CountsDiffer, match="found 'orders' with 4, 'payments' with 6"):
            shop.turn(20)
