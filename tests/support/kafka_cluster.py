"""Three Kafka brokers, of which a test may end two."""

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from partition.records import Partition
from service.devservers.process import HOST, free_ports
from service.devservers.servers import EmbeddedKafka, new_cluster_id
from tests.support.patience import Limit, seconds

SECONDS = seconds(60.0)
_POLL_SECONDS = 0.05


class KafkaCluster:
    """Broker 1 is the controller, too, and stays; 2 and 3 lead what a test moves about.

    The test's thread owns it.
    """

    def __init__(self, folder: Path) -> None:
        cluster_id = new_cluster_id()
        controller, *ports = free_ports(4)
        common = {
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "replica.lag.time.max.ms": "2000",
            "auto.leader.rebalance.enable": "false",
        }
        self.brokers: dict[int, EmbeddedKafka] = {}
        for number, port in enumerate(ports, start=1):
            own = f"PLAINTEXT://{HOST}:{port}"
            is_first = number == 1
            properties = {
                **common,
                "node.id": str(number),
                "process.roles": "broker,controller" if is_first else "broker",
                "listeners": f"{own},CONTROLLER://{HOST}:{controller}" if is_first else own,
            }
            self.brokers[number] = EmbeddedKafka(
                folder / f"broker-{number}",
                port,
                properties=properties,
                cluster_id=cluster_id,
                heap_mb=256,
            )

    def open(self) -> None:
        for broker in self.brokers.values():
            broker.open()

    def close(self) -> None:
        """Stop all; the controller last, or the others would wait for it."""
        for number in (3, 2, 1):
            self.brokers[number].close()

    @property
    def addresses(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    @property
    def admin(self) -> AdminClient:
        """A client; it must outlive what it is asked for."""
        return AdminClient({"bootstrap.servers": self.brokers[1].address})

    def create_topic(self, name: str, replicas: list[list[int]]) -> None:
        """Create a topic whose partitions lie on these brokers, the preferred leader first."""
        admin = self.admin
        topic = NewTopic(name, len(replicas), replica_assignment=replicas)
        admin.create_topics([topic])[name].result(SECONDS)
        for number, each in enumerate(replicas):
            self.led_by(Partition(name, number), each[0])

    def led_by(self, partition: Partition, broker: int) -> None:
        self.until(partition, lambda leader, _isr: leader == broker)

    def until(self, partition: Partition, holds: Callable[[int, set[int]], bool]) -> None:
        admin = self.admin
        deadline = Limit(SECONDS)
        found: object = None
        while True:
            try:
                topic = admin.list_topics(partition.topic, timeout=SECONDS).topics[partition.topic]
                place = topic.partitions[partition.number]
            except (KafkaException, KeyError) as error:
                found = error
            else:
                found = (place.leader, place.isrs)
                if holds(place.leader, set(place.isrs)):
                    return
            assert not deadline.passed, f"{partition}: {found}"
            time.sleep(_POLL_SECONDS)

    def elect(self, partition: Partition, *, unclean: bool = False) -> None:
        """Have the preferred replica lead; `unclean`: any that lives, whatever it lacks."""
        place = TopicPartition(partition.topic, partition.number)
        kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
        admin = self.admin
        result = admin.elect_leaders(kind, [place]).result(SECONDS)
        assert result[place] is None, result
