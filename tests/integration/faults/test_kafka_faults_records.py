import hashlib
import time

import pytest

from partition.records import Partition
from tests.support.kafka import SECONDS, KafkaWorld, Reading, numbers
from tests.support.patience import Limit
from tests.support.raw_headers import RawRecord, send_raw

pytestmark = pytest.mark.faults
SPOILT = b"spoilt-on-disk"
# A log that is compacted at once, but for its last segment.
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "200",
}
KEYS = 4


def test_the_holes_of_a_compacted_log_leave_no_lag_behind(own, serve):
    """Promise 11; Faults K08: what the cleaner took is no loss, and holds nothing up."""
    topic = own.topic(config=COMPACTED)
    a = Partition(topic, 0)
    count = compact(own, a)
    serving = serve(topic, own)
    account = serving.run()
    read = serving.offsets(0)
    assert account.problems() == []
    assert account.read == len(read) == len(set(read))
    assert len(read) < count, "the cleaner has taken some"
    assert set(range(count - KEYS, count)) <= set(read), "the newest record of each key is there"
    assert account.partitions[f"{topic}[0]"].committed == own.log(a).end == count
    assert account.lost == 0
    assert serving.run().read == 0


def compact(world: KafkaWorld, partition: Partition) -> int:
    """Write few keys again and again until the cleaner has been there; how many records."""
    count = 0
    deadline = Limit(SECONDS)
    while True:
        for key in range(KEYS):
            now = time.time_ns() // 1_000_000
            world.append_one(partition, b"%d" % count, b"key-%d" % key, [], now)
            count += 1
        if held(world, partition) < count:
            return count
        assert not deadline.passed, "it was not compacted"


def held(world: KafkaWorld, partition: Partition) -> int:
    reading = Reading(world.fetcher())
    reading.add({partition: 0})
    reading.until(lambda: partition in reading.ends)
    return len(reading.offsets(partition))


def test_corrupt_record_halts_until_an_operator_skips_it(world, serve):
    """Promise 12; Faults K10: the default configuration tells a flipped bit on the disk."""
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    world.append(a, numbers(5))
    world.append(a, [SPOILT])
    world.append(a, numbers(4))
    world.corrupt(a, 5, SPOILT)
    world.append(b, numbers(3))
    serving = serve(topic, world)
    with serving.runs() as running:
        running.until("it is halted", lambda: running.of("halted_state", topic, 0) == 1)
        assert any(f"{topic}[0] is halted" in problem for problem in running.problems)
        world.append(b, numbers(3))
        running.committed(topic, {0: 5, 1: 6})
        account = running.end()
    assert "corrupt" in account.halted[f"{topic}[0]"]
    assert "offset 5" in account.halted[f"{topic}[0]"]
    assert serving.offsets(0) == [0, 1, 2, 3, 4]
    assert serving.letters() == []
    with serving.runs(on_corrupt_record="skip") as running:
        running.committed(topic, {0: 10, 1: 6})
        labels = f'topic="{topic}",partition="0",reason="corrupt"'
        assert running.figure(f"headrace_partition_source_lost_records_total{{{labels}}}") == 1
        running.until("ready", lambda: not running.problems)
        running.end()
    assert serving.offsets(0) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    (notice,) = serving.letters()
    assert (notice["headrace.reason"], notice["headrace.first_offset"]) == ("corrupt", "5")


def test_oversized_record_becomes_a_letter_by_reference(world, serve):
    """Promise 3; Faults K11, D03: size, digest and place are told, and the offset passes."""
    topic = world.topic(config={"max.message.bytes": "10000000"})
    a = Partition(topic, 0)
    large = b"bad" + b"x" * 3_000_000
    world.append(a, [b"1", large, b"2"], **{"message.max.bytes": 10_000_000})
    serving = serve(topic, world)
    account = serving.run(max_record_bytes=100_000)
    assert account.problems() == []
    assert (account.read, account.written, account.dead_lettered) == (3, 2, 1)
    assert serving.offsets(0) == [0, 2]
    (letter,) = serving.letters()
    assert letter["headrace.error_class"] == "Oversized"
    assert letter["headrace.value_size"] == str(len(large))
    assert letter["headrace.value_sha256"] == hashlib.sha256(large).hexdigest()
    assert (letter["headrace.topic"], letter["headrace.offset"]) == (topic, "1")
    assert letter["headrace.partition"] == "0"


def test_non_utf8_header_name_costs_only_the_headers(world, serve):
    """Promise 3; Faults K17: the client gives no headers; who looks at them has a dead letter."""
    topic = world.topic()
    good = ((b"a", b"1"), (b"b", None))
    bad = ((b"a", b"1"), (b"\xffname", b"2"))
    hot = [RawRecord(b"look", good)] * 50  # until the interpreter has specialised the bolt
    odd = [RawRecord(b"1", bad, b"k"), RawRecord(b"bad", bad, b"k"), RawRecord(b"look", bad, b"k")]
    send_raw(world.kafka.address, topic, [*hot, *odd, RawRecord(b"look", good)])
    serving = serve(topic, world)
    account = serving.run()
    assert account.problems() == []
    assert serving.offsets(0) == [*range(51), 53]
    refused, looked = serving.letter_messages()
    for letter, error in ((refused, "Reject"), (looked, "HeadersUnreadable")):
        headers = dict(letter.headers())
        assert letter.key() == b"k"
        assert "a" not in headers
        assert headers["headrace.error_class"] == error.encode()
        assert b"found the name b'\\xffname'" in headers["headrace.headers_error"]
    assert serving.run().read == 0
