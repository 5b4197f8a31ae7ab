"""How long a transaction that is open holds readers up, as statistics tell."""

from typing import Any

from partition.kafka.librdkafka import OpenTransactions
from partition.records import Partition

A, B = Partition("t", 0), Partition("t", 1)


def told(seconds: float, **logs: tuple[int, int]) -> dict[str, Any]:
    """Statistics of a moment: of each log its last stable offset and its end."""
    numbers = {"a": "0", "b": "1"}
    partitions = {
        numbers[name]: {"ls_offset": stable, "hi_offset": end}
        for name, (stable, end) in logs.items()
    }
    return {"ts": int(seconds * 1e6), "topics": {"t": {"partitions": partitions}}}


def test_a_reader_waits_from_when_it_was_seen_that_it_cannot_go_on() -> None:
    """Faults K13."""
    found = OpenTransactions()
    assert found.seconds(A, 3) == 0
    found.take(told(100, a=(3, 3), b=(5, 9)))
    found.take(told(102, a=(3, 6), b=(5, 9)))
    found.take(told(104, a=(3, 8), b=(5, 12)))
    assert (found.seconds(A, 3), found.seconds(B, 5)) == (2, 4)
    assert found.seconds(A, 2) == 0, "what lies before it is still to come"


def test_each_transaction_that_ends_begins_the_wait_anew() -> None:
    found = OpenTransactions()
    found.take(told(100, a=(3, 6)))
    found.take(told(110, a=(5, 9)))
    assert found.seconds(A, 5) == 0
    found.take(told(112, a=(5, 9)))
    assert found.seconds(A, 5) == 2
    found.take(told(114, a=(9, 9)))
    assert found.seconds(A, 9) == 0
    found.take(told(116, a=(9, 12)))
    assert found.seconds(A, 9) == 0


def test_what_is_not_known_holds_nobody_up() -> None:
    found = OpenTransactions()
    found.take(told(100, a=(-1001, 9)))
    found.take({"topics": {"t": {"partitions": {"-1": {"ls_offset": -1001, "hi_offset": -1}}}}})
    found.take({})
    assert found.seconds(A, -1001) == 0
    found.take(told(100, a=(3, 6)))
    found.clear()
    assert found.seconds(A, 3) == 0
