"""A pipeline at most once: what fails is not tried again, whatever it was."""

from typing import Any

from headrace import Record, bolt
from tests.support.patience import Limit
from tests.support.pipeline import PATIENCE_SECONDS, Door, HeldSink, Works
from topology.sink import Staged


class FailingSink(HeldSink):
    """Keeps the rows of its first write, and then loses the answer."""

    def __init__(self) -> None:
        super().__init__("failing")
        self.writes = 0

    def commit(self, staged: Staged) -> None:
        super().commit(staged)
        self.writes += 1
        if self.writes == 1:
            message = "the answer is lost"
            raise OSError(message)


def calls_of(error: Exception) -> tuple[Any, list[bytes]]:
    """A bolt that notes its calls and fails for `bad`."""
    calls: list[bytes] = []

    @bolt
    def note(record: Record) -> bytes:
        value = record.value or b""
        calls.append(value)
        if value == b"bad":
            raise error
        return value

    return note, calls


def test_at_most_once_never_writes_a_batch_again() -> None:
    note, _calls = calls_of(RuntimeError())
    with Works(note, sinks=[FailingSink()], at_most_once=True) as works:
        works.send(b"a", b"b")
        works.until(lambda: works.stored == 2 and works.ledger.pending == 0)
        works.send(b"c")
        works.until(lambda: works.stored == 3 and works.ledger.pending == 0)
        assert works.sink.rows == [b"a", b"b", b"c"]
        assert [letter.record.offset for letter in works.letters_sink.letters] == [0, 1]
        assert "may be durable" in works.letters_sink.letters[0].reason


def test_drain_processes_all_that_is_stored_as_read() -> None:
    """Promise 16: only a crash loses records."""
    note, calls = calls_of(RuntimeError())
    for turns in range(6):
        calls.clear()
        with Works(note, at_most_once=True, fetch_records=3) as works:
            works.send(*(b"%d" % number for number in range(20)))
            works.turn(turns)
            while not works.pipeline.is_idle:
                works.pipeline.step(fetch=False, flush=True)
            works.reader.commit(works.now, force=True)
            assert len(calls) == len(works.sink.rows) == max(0, works.stored)


def test_stop_ignores_the_rate_limit_and_loses_nothing() -> None:
    """Promise 16."""
    note, calls = calls_of(RuntimeError())
    with Works(note, at_most_once=True, records_per_second=100) as works:
        works.send(*(b"%d" % number for number in range(10_000)))
        works.advance(10.0, step=0.01)
        assert works.stored - len(calls) <= 100
        drain(works)
        assert len(calls) == len(works.sink.rows) == works.stored < 1_200


def test_stop_behind_a_slow_sink_loses_nothing() -> None:
    """Promise 16."""
    note, calls = calls_of(RuntimeError())
    sizes = {"batch_rows": 10, "chunk_records": 10, "fetch_records": 20}
    with Works(note, at_most_once=True, **sizes) as works:
        works.sink.gate.clear()
        works.send(*(b"%d" % number for number in range(1_000)))
        works.until(lambda: works.pipeline.statistics().held_back)
        works.turn(20)
        assert works.stored - len(calls) <= 20
        works.sink.gate.set()
        drain(works)
        assert len(calls) == len(works.sink.rows) == works.stored < 1_000


def test_stop_behind_a_slow_bolt_loses_nothing() -> None:
    """Promise 16."""
    door = Door()
    with Works(door.as_bolt(), at_most_once=True, chunk_records=10, fetch_records=20) as works:
        works.send(*(b"%d" % number for number in range(1_000)))
        works.until(lambda: door.calls == ["0"])
        works.until(lambda: works.pipeline.statistics().held_back)
        works.turn(20)
        assert works.stored <= 40
        door.open()
        drain(works)
        assert len(door.calls) == len(works.sink.rows) == works.stored < 1_000


def drain(works: Works) -> None:
    """End the run as the service does, at one moment of the clock."""
    end = Limit(PATIENCE_SECONDS)
    while not works.pipeline.is_idle:
        assert not end.passed, works.ledger
        works.pipeline.step(fetch=False, flush=True, drain=True)
    works.reader.commit(works.now, force=True)
