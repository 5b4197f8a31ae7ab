import uuid
from contextlib import closing

import pytest

from partition.errors import KafkaFailed
from partition.records import Partition
from service.devservers.servers import EmbeddedZooKeeper
from tests.support.kafka import KafkaWorld, numbers
from tests.support.secured_servers import SCRAM, USER, GuardedKafka, Way
from tests.support.servers import opened
from tests.support.service import Serving

pytestmark = pytest.mark.faults
SECRET, OTHER_SECRET = "S3cretPw-0123456789", "0therPw-9876543210"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with opened(GuardedKafka(tmp_path_factory.mktemp("kafka"), Way("scram", SCRAM))) as server:
        yield server


@pytest.fixture
def topic(broker):
    """The user may read it, and write its dead letters."""
    broker.admit(SECRET)
    name = f"t-{uuid.uuid4().hex[:12]}"
    for each in (name, f"{name}.dead"):
        broker.create_topic(each)
    broker.allow(("TOPIC", name, "READ DESCRIBE"))
    broker.allow(("TOPIC", f"{name}.dead", "WRITE DESCRIBE READ"))
    return name


@pytest.fixture
def world(broker):
    with closing(KafkaWorld(broker)) as made:
        yield made


def serving(
    broker: GuardedKafka, zookeeper: EmbeddedZooKeeper, topic: str, password: str = SECRET
) -> Serving:
    properties = {
        "bootstrap.servers": broker.at("scram"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": SCRAM,
        "sasl.username": USER,
        "sasl.password": password,
    }
    return Serving(topic, properties, zookeeper.address)


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
        broker.forbid(("TOPIC", topic, "READ"))
        world.append(a, numbers(20))
        error = running.failed()
    assert isinstance(error, KafkaFailed)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
    assert topic in str(error)
    assert tells_no_secret(begun, error, SECRET)
    broker.allow(("TOPIC", topic, "READ"))
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
        broker.admit(OTHER_SECRET)
        world.append(a, numbers(20))
        running.committed(topic, {0: 40})
        broker.close()
        broker.open()
        error = running.failed()
    assert isinstance(error, KafkaFailed)
    assert "uthentication" in str(error)
    assert tells_no_secret(begun, error, SECRET, OTHER_SECRET)
    broker.admit(SECRET)
    assert begun.run().problems() == []
    assert begun.offsets(0) == list(range(40))


def test_letters_that_may_not_be_written_hold_their_offset(broker, zookeeper, topic, world):
    """Promise 1; Faults K15, D01: refused letters are sent again until they may be."""
    a = Partition(topic, 0)
    begun = serving(broker, zookeeper, topic)
    with begun.runs() as running:
        running.committed(topic, {0: 0})
        broker.forbid(("TOPIC", begun.dead, "WRITE"))
        world.append(a, [*numbers(3), b"bad", *numbers(3)])
        running.until(
            "a letter is refused",
            lambda: running.figure("headrace_sinks_dead_letters_refused_records_total") > 0,
        )
        running.committed(topic, {0: 3})
        broker.allow(("TOPIC", begun.dead, "WRITE"))
        running.committed(topic, {0: 7})
        running.end()
    assert begun.events("dead_letter_refused")
