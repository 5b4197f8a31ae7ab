"""The test kit under exactly-once: the rows of each transaction come once, when all is done."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace import Record, Reject, Retry, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test
from tests.support.chaos import chaotic, spoil_all
from topology.sink import Kind


def topology_of(*parts: Any, sink: Any = None, transactions: Kind = "transactional") -> Topology:
    topology = Topology("numbers", reliability="exactly-once", transactions=transactions)
    stream: Any = topology.source("numbers")
    for part in parts:
        stream = stream.then(part)
    stream.into(sink if sink is not None else MemorySink[Any](), name="table")
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


@bolt
def number(record: Record) -> dict[str, int]:
    return {"n": int(record.value or b"")}


def numbers(rows: list[Any]) -> list[int]:
    return [row["n"] for row in rows]


def payloads(*values: int) -> list[bytes]:
    return [str(value).encode() for value in values]


@pytest.mark.parametrize("transactions", ["transactional", "opaque"])
def test_rows_are_there_when_send_returns(transactions: Kind) -> None:
    with topology_test(topology_of(number, transactions=transactions)) as test:
        test.send(*payloads(1, 2, 3)).send(*payloads(4), partition=1)
        assert numbers(test.rows) == [1, 2, 3, 4]
        assert [record.offset for record in test.acked] == [0, 1, 2, 0]
        assert test.unresolved == 0
        assert test.metrics["headrace_service_written_records_total"] == 4
        assert [event.what for event in test.history(1)] == ["read", "written", "resolved"]


def test_a_transaction_waits_for_the_record_that_is_tried_again() -> None:
    tries: Counter[int] = Counter()

    @bolt
    def stumble(row: dict[str, int]) -> dict[str, int]:
        tries[row["n"]] += 1
        if row["n"] == 2 and tries[2] == 1:
            raise Retry("once more")
        return row

    with topology_test(topology_of(number, stumble)) as test:
        test.send(*payloads(1, 2, 3))
        for later in range(4, 10):
            test.send(*payloads(later))
        assert (test.rows, test.acked, test.retrying, test.unresolved) == ([], [], 1, 9)
        test.send(*payloads(10), partition=1)
        assert numbers(test.rows) == [10], "another partition's transactions do not wait"
        test.advance(10)
        assert sorted(numbers(test.rows)) == list(range(1, 11))
        assert (len(test.acked), test.unresolved) == (10, 0)
        assert tries[3] == 1, "only the record itself is tried again"


def test_rows_of_a_try_that_failed_are_left_out() -> None:
    """Promise 4: one branch's rows were ready before the other branch failed."""
    tries: Counter[int] = Counter()

    @bolt(blocking=True)
    def stumble(row: dict[str, int]) -> dict[str, int]:
        tries[row["n"]] += 1
        if tries[row["n"]] == 1:
            raise Retry("once more")
        return row

    topology = Topology("numbers", reliability="exactly-once")
    stream = topology.source("numbers").then(number)
    stream.into(MemorySink[Any](), name="plain")
    stream.then(stumble).into(MemorySink[Any](), name="stumbling")
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as test:
        test.send(*payloads(1, 2))
        assert test.rows == []
        test.advance(10)
        assert sorted(numbers(test.rows_of("plain"))) == [1, 2]
        assert sorted(numbers(test.rows_of("stumbling"))) == [1, 2]


def test_rejected_records_and_rows_become_letters_and_the_others_rows() -> None:
    @bolt
    def twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if row["n"] == 3:
            raise Reject("three")
        yield row
        yield {"n": "two"} if row["n"] == 2 else {"n": row["n"] + 100}

    sink = MemorySink[Any](schema=pa.schema([("n", pa.int64())]))
    with topology_test(topology_of(number, twice, sink=sink)) as test:
        test.send(*payloads(1, 2, 3))
        assert numbers(test.rows) == [1, 101, 2]
        assert [letter.record.offset for letter in test.rejected] == [2, 1]
        assert [record.offset for record in test.acked] == [0]
        assert test.unresolved == 0


@pytest.mark.parametrize("seed", range(5))
def test_chaos_doubles_no_row_and_loses_none(seed: int) -> None:
    """Promises 3 and 4."""
    step = chaotic(number, seed=seed, fail=0.2, retry=0.1, reject=0.1)
    with topology_test(topology_of(step), seed=seed) as test:
        spoil_all(test, seed=seed, busy=0.2, fail_before=0.2, fail_after=0.2, reject=0.1)
        for first in range(0, 60, 6):
            test.send(*payloads(*range(first, first + 6)), partition=first % 4)
        test.advance(600)
        assert test.unresolved == 0
        lettered = [int(letter.record.value or b"") for letter in test.rejected]
        assert lettered, "chaos rejects"
        assert sorted(numbers(test.rows) + lettered) == list(range(60))
