import hashlib

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from partition.records import Partition
from service.errors import TooManyDeadLetters
from tests.support.kafka import KafkaWorld, numbers
from tests.support.patience import seconds
from tests.support.raw_headers import RawRecord, send_raw

pytestmark = pytest.mark.faults
PENDING = "headrace_sinks_dead_letters_pending_records"
REFUSED = "headrace_sinks_dead_letters_refused_records_total"
WAITING = "headrace_sinks_dead_letters_waiting_seconds"


def bad(count: int) -> list[bytes]:
    return [b"bad"] * count


def allow(world: KafkaWorld, topic: str, size: str) -> None:
    entry = ConfigEntry("max.message.bytes", size, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": world.kafka.address})
    admin.incremental_alter_configs([resource])[resource].result(seconds(30))


def test_no_offset_passes_a_record_whose_letter_cannot_be_sent(world, own, serve):
    """Promise 1; Faults D01: the broker of the letters is away, that of the records is not."""
    topic = world.topic()
    a = Partition(topic, 0)
    serving = serve(topic, world, letters={"bootstrap.servers": own.kafka.address})
    with serving.runs() as running:
        world.append(a, [*numbers(3), *bad(1)])
        running.committed(topic, {0: 4})
        own.kafka.close()
        world.append(a, [*numbers(5), *bad(2), *numbers(5)])
        running.until("both letters wait", lambda: running.figure(PENDING) == 2)
        running.committed(topic, {0: 9})
        running.says("dead letters wait")
        assert running.figure(WAITING) >= 10
        world.append(a, numbers(5))
        running.until("the others go on", lambda: running.of("emitted_offset", topic, 0) == 21)
        assert running.of("committed_offset", topic, 0) == 9
        own.kafka.open()
        running.committed(topic, {0: 21})
        running.until("ready", lambda: not running.problems)
        account = running.end()
    assert account.problems() == []
    assert [letter["headrace.offset"] for letter in serving.letters()] == ["3", "9", "10"]
    assert serving.offsets(0) == [0, 1, 2, *range(4, 9), *range(11, 21)]
    assert serving.events("dead_letter_broker_error"), "the log says what is wrong"


def test_letters_are_resent_until_their_topic_exists(world, serve):
    """Promise 3; Faults D01: a broker that answers and refuses is not taken for one that has it."""
    topic = world.topic()
    a = Partition(topic, 0)
    serving = serve(topic, world)
    with serving.runs() as running:
        world.append(a, bad(1))
        running.committed(topic, {0: 1})
        world.delete_topic(serving.dead)
        world.append(a, [*numbers(2), *bad(1), *numbers(2)])
        running.until("a letter is refused", lambda: running.figure(REFUSED) > 0)
        running.committed(topic, {0: 3})
        running.says("dead letters wait")
        assert running.figure(PENDING) == 1
        assert running.of("committed_offset", topic, 0) == 3
        assert running.of("emitted_offset", topic, 0) == 6, "the others go on"
        world.kafka.create_topic(serving.dead)
        running.committed(topic, {0: 6})
        running.until("ready", lambda: not running.problems)
        running.end()
    assert [letter["headrace.offset"] for letter in serving.letters()] == ["3"]
    assert serving.events("dead_letter_refused")


def test_too_many_dead_letters_end_the_run_and_lose_nothing(world, serve):
    """Promise 1; Faults D02: it is the service or the sender that is wrong, not the records."""
    topic = world.topic()
    a = Partition(topic, 0)
    serving = serve(topic, world)
    limit = {"max_ratio": 0.3, "of_records": 100}
    world.append(a, [value for _ in range(40) for value in [*numbers(4), *bad(1)]])
    with serving.runs(dead_letters=limit) as running:
        running.committed(topic, {0: 200})
        world.append(a, bad(1000))
        error = running.failed()
    assert isinstance(error, TooManyDeadLetters)
    assert error.letters > 0.3 * error.records
    account = serving.run()
    letters = {int(letter["headrace.offset"]) for letter in serving.letters()}
    assert letters == {*range(4, 200, 5), *range(200, 1200)}, "all that is bad has a letter"
    assert len(serving.rows) == len(set(serving.rows)) == 160
    assert account.problems() == []


def test_oversized_key_becomes_its_size_and_digest(world, serve):
    """Promise 3; Faults D04: the value is left out, then the key, and the offset passes."""
    topic = world.topic(config={"max.message.bytes": "10000000"})
    serving = serve(topic, world)
    world.kafka.create_topic(serving.dead, config={"max.message.bytes": "2000"})
    key = b"k" * 3_000
    large = [RawRecord(b"bad", ((b"h", b"x" * 3_000),), b"small"), RawRecord(b"bad", (), key)]
    few = [RawRecord(b"bad", (), b"%d" % number) for number in range(20)]
    send_raw(world.kafka.address, topic, [*large, *few])
    account = serving.run()
    assert account.problems() == []
    assert account.dead_lettered == 22
    letters = {dict(each.headers())["headrace.offset"]: each for each in serving.letter_messages()}
    by_key = dict(letters[b"1"].headers())
    assert (letters[b"0"].key(), letters[b"0"].value()) == (b"small", None)
    assert (letters[b"1"].key(), letters[b"1"].value()) == (None, None)
    assert by_key["headrace.key_size"] == b"3000"
    assert by_key["headrace.key_sha256"] == hashlib.sha256(key).hexdigest().encode()
    assert by_key["headrace.value_size"] == b"3"
    whole = {letters[b"%d" % number].value() for number in range(2, 22)}
    assert whole == {b"bad"}, "those that fit are whole, although many were sent at once"


def test_letter_too_large_in_any_form_blocks_its_offset(world, serve):
    """Promise 1; Faults D04: nothing is lost, and the log says which letter it is."""
    topic = world.topic()
    serving = serve(topic, world)
    world.kafka.create_topic(serving.dead, config={"max.message.bytes": "200"})
    send_raw(world.kafka.address, topic, [RawRecord(b"1", ()), RawRecord(b"bad", (), b"key")])
    with serving.runs() as running:
        running.until("it is refused again", lambda: running.figure(REFUSED) > 1)
        running.committed(topic, {0: 1})
        assert running.figure(PENDING) == 1
        first, second, *_ = serving.events("dead_letter_refused")
        assert (first["topic"], first["partition"], first["offset"]) == (topic, 0, 1)
        assert (first["size"], first["refusals"], second["refusals"]) == (6, 1, 2)
        assert "too large" in first["error"]
        allow(world, serving.dead, "100000")
        running.committed(topic, {0: 2})
        running.end()
    (letter,) = serving.letter_messages()
    assert (letter.key(), letter.value()) == (b"key", b"bad")
