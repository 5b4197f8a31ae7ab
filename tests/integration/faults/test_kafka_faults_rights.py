import uuid
from pathlib import Path
from typing import Any

import confluent_kafka.admin as kafka_admin
import pytest
from confluent_kafka.admin import AdminClient

from partition.errors import KafkaFailed
from partition.records import Partition
from service.devservers.process import HOST, free_ports
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.support.kafka import SECONDS, KafkaWorld, numbers
from tests.support.servers import opened
from tests.support.service import Serving

pytestmark = pytest.mark.faults
USER = "svc"
SECRET, OTHER_SECRET = "S3cretPw-0123456789", "0therPw-9876543210"


class Guarded(EmbeddedKafka):
    """A broker whose second listener asks who is there, and what they may do."""

    def __init__(self, folder: Path) -> None:
        plain, controller, guarded = free_ports(3)
        self.guarded = f"{HOST}:{guarded}"
        listeners = f"PLAINTEXT://{HOST}:{plain},SASL_PLAINTEXT://{self.guarded}"
        jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        super().__init__(
            folder,
            plain,
            properties={
                "controller.quorum.voters": f"1@{HOST}:{controller}",
                "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
                "advertised.listeners": listeners,
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
                ),
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": jaas,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",  # who comes by the first listener
            },
        )

    def set_password(self, password: str) -> None:
        change = kafka_admin.UserScramCredentialUpsertion(
            USER,
            kafka_admin.ScramCredentialInfo(kafka_admin.ScramMechanism.SCRAM_SHA_256, 4096),
            password.encode(),
        )
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.alter_user_scram_credentials([change])[USER].result(SECONDS)

    def allow(self, topic: str, *operations: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        for answer in admin.create_acls([right(topic, each) for each in operations]).values():
            answer.result(SECONDS)

    def forbid(self, topic: str, operation: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        which = right(topic, operation, kafka_admin.AclBindingFilter)
        (answer,) = admin.delete_acls([which]).values()
        assert len(answer.result(SECONDS)) == 1

    def properties(self, password: str = SECRET) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.guarded,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": password,
        }


def right(topic: str, operation: str, kind: Any = kafka_admin.AclBinding) -> Any:
    return kind(
        kafka_admin.ResourceType.TOPIC,
        topic,
        kafka_admin.ResourcePatternType.LITERAL,
        f"User:{USER}",
        "*",
        kafka_admin.AclOperation[operation],
        kafka_admin.AclPermissionType.ALLOW,
    )


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with opened(Guarded(tmp_path_factory.mktemp("kafka"))) as server:
        yield server


@pytest.fixture
def topic(broker):
    """The user may read it, and write its dead letters."""
    broker.set_password(SECRET)
    name = f"t-{uuid.uuid4().hex[:12]}"
    for each in (name, f"{name}.dead"):
        broker.create_topic(each)
    broker.allow(name, "READ", "DESCRIBE")
    broker.allow(f"{name}.dead", "WRITE", "DESCRIBE", "READ")
    return name


@pytest.fixture
def world(broker):
    made = KafkaWorld(broker)
    yield made
    made.close()


def serving(
    broker: Guarded, zookeeper: EmbeddedZooKeeper, topic: str, password: str = SECRET
) -> Serving:
    return Serving(topic, broker.properties(password), zookeeper.address)


def tells_no_secret(serving: Serving, error: BaseException, *secrets: str) -> bool:
    text = repr(error) + str(error) + repr(serving.all_told())
    return not any(secret in text for secret in secrets)


def test_rejected_password_ends_the_start_with_a_reason(broker, zookeeper, topic):
    """Faults K15: no waiting for what cannot change; the secret is in no text."""
    begun = serving(broker, zookeeper, topic, OTHER_SECRET)
    with begun.runs() as running:
        error = running.failed()
    assert "uthentication" in str(error)
    assert tells_no_secret(begun, error, OTHER_SECRET)


def test_revoked_right_ends_the_run_without_loss(broker, zookeeper, topic, world):
    """Promise 15; Faults K15: what was resolved is stored; with the right back it goes on."""
    a = Partition(topic, 0)
    world.append(a, [*numbers(20), b"bad"])
    begun = serving(broker, zookeeper, topic)
    with begun.runs() as running:
        running.committed(topic, {0: 21})
        broker.forbid(topic, "READ")
        world.append(a, numbers(20))
        error = running.failed()
    assert isinstance(error, KafkaFailed)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
    assert topic in str(error)
    assert tells_no_secret(begun, error, SECRET)
    broker.allow(topic, "READ")
    account = begun.run()
    assert account.problems() == []
    assert begun.offsets(0) == [*range(20), *range(21, 41)]


def test_password_changed_during_a_run_ends_it(broker, zookeeper, topic, world):
    """Promise 15; Faults K15: connections that are there stay; the first new one is refused."""
    a = Partition(topic, 0)
    world.append(a, numbers(20))
    begun = serving(broker, zookeeper, topic)
    with begun.runs() as running:
        running.committed(topic, {0: 20})
        broker.set_password(OTHER_SECRET)
        world.append(a, numbers(20))
        running.committed(topic, {0: 40})
        broker.close()
        broker.open()
        error = running.failed()
    assert isinstance(error, KafkaFailed)
    assert "uthentication" in str(error)
    assert tells_no_secret(begun, error, SECRET, OTHER_SECRET)
    broker.set_password(SECRET)
    assert begun.run().problems() == []
    assert begun.offsets(0) == list(range(40))


def test_letters_that_may_not_be_written_hold_their_offset(broker, zookeeper, topic, world):
    """Promise 1; Faults K15, D01: refused letters are sent again until they may be."""
    a = Partition(topic, 0)
    begun = serving(broker, zookeeper, topic)
    with begun.runs() as running:
        running.committed(topic, {0: 0})
        broker.forbid(begun.dead, "WRITE")
        world.append(a, [*numbers(3), b"bad", *numbers(3)])
        running.until(
            "a letter is refused",
            lambda: running.figure("headrace_sinks_dead_letters_refused_records_total") > 0,
        )
        running.committed(topic, {0: 3})
        broker.allow(begun.dead, "WRITE")
        running.committed(topic, {0: 7})
        running.end()
    assert begun.events("dead_letter_refused")
