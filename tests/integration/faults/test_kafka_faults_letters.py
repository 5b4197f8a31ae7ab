"""A dead-letter topic that is away, refuses, or gets too much: on real brokers."""

import pytest

from partition.chunk import Partition
from service.errors import TooManyDeadLetters
from tests.integration.faults.conftest import MakeServing
from tests.worlds.fetching import KafkaWorld, numbers

pytestmark = pytest.mark.faults
PENDING = "headrace_sinks_dead_letters_pending_records"
REFUSED = "headrace_sinks_dead_letters_refused_records_total"
WAITING = "headrace_sinks_dead_letters_waiting_seconds"


def bad(count: int) -> list[bytes]:
    """Values that the bolt refuses."""
    return [b"bad"] * count


def test_no_offset_passes_a_record_whose_letter_cannot_be_sent(
    world: KafkaWorld, own: KafkaWorld, serve: MakeServing
) -> None:
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
        running.until(
            "not ready",
            lambda: any("dead letters wait" in problem for problem in running.problems),
        )
        assert running.figure(WAITING) >= 10
        world.append(a, numbers(5))
        running.until("the others go on", lambda: running.of("emitted_offset", topic, 0) == 21)
        assert running.of("committed_offset", topic, 0) == 9
        own.kafka.open()
        running.committed(topic, {0: 21})
        running.until("ready", lambda: not running.problems)
        account = running.end()
    assert account.gaps() == []
    assert [letter["headrace.offset"] for letter in serving.letters()] == ["3", "9", "10"]
    assert serving.offsets(0) == [0, 1, 2, *range(4, 9), *range(11, 21)]
    assert serving.events("dead_letter_broker_error"), "the log says what is wrong"


def test_letters_whose_topic_was_deleted_are_sent_again_until_there_is_one(
    world: KafkaWorld, serve: MakeServing
) -> None:
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
        running.until(
            "not ready",
            lambda: any("dead letters wait" in problem for problem in running.problems),
        )
        assert running.figure(PENDING) == 1
        assert running.of("committed_offset", topic, 0) == 3
        assert running.of("emitted_offset", topic, 0) == 6, "the others go on"
        world.kafka.create_topic(serving.dead)
        running.committed(topic, {0: 6})
        running.until("ready", lambda: not running.problems)
        running.end()
    assert [letter["headrace.offset"] for letter in serving.letters()] == ["3"]
    assert serving.events("dead_letter_refused")


def test_too_many_dead_letters_end_the_run_and_lose_nothing(
    world: KafkaWorld, serve: MakeServing
) -> None:
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
    assert account.gaps() == []
