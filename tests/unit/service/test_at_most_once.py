from typing import Any

import pytest

from tests.support.patience import Limit
from tests.support.pipeline import PATIENCE_SECONDS, Door, HeldSink, Works, text_of


def test_at_most_once_never_writes_a_batch_again():
    sink, answers = HeldSink(), iter([OSError("the answer is lost")])
    commit = sink.commit

    def commit_without_the_first_answer(staged):
        commit(staged)
        for error in answers:
            raise error

    sink.commit = commit_without_the_first_answer
    with Works(text_of, sinks=[sink], at_most_once=True) as works:
        works.send(b"a", b"b")
        works.until(lambda: works.stored == 2 and works.ledger.pending == 0)
        works.send(b"c")
        works.until(lambda: works.stored == 3 and works.ledger.pending == 0)
        assert works.sink.rows == ["a", "b", "c"]
        assert [letter.record.offset for letter in works.letters_sink.letters] == [0, 1]
        assert "may be durable" in works.letters_sink.letters[0].reason


# Promise 16: a stop ends when all that is stored as read is processed


def send(works, count):
    works.send(*(b"%d" % number for number in range(count)))


def drain(works, *, below):
    """End the run as the service does, at one moment of the clock; nothing is lost."""
    end = Limit(PATIENCE_SECONDS)
    while not works.pipeline.is_idle:
        assert not end.passed, works.ledger
        works.pipeline.step(fetch=False, flush=True, drain=True)
    works.reader.commit(works.now, force=True)
    assert len(works.sink.rows) == max(0, works.stored) < below


@pytest.mark.parametrize("turns", range(6))
def test_drain_processes_all_that_is_stored_as_read(turns):
    """Promise 16: only a crash loses records."""
    with Works(text_of, at_most_once=True, fetch_records=3) as works:
        send(works, 20)
        works.turn(turns)
        drain(works, below=21)


def test_stop_ignores_the_rate_limit_and_loses_nothing():
    """Promise 16."""
    with Works(text_of, at_most_once=True, records_per_second=100) as works:
        send(works, 10_000)
        works.advance(10.0, step=0.01)
        assert works.stored - works.ledger.emitted_to <= 100
        drain(works, below=1_200)


@pytest.mark.parametrize("slow", ["bolt", "sink"])
def test_stop_behind_a_slow_part_loses_nothing(slow):
    """Promise 16."""
    door = Door()
    bolt_: Any = door.as_bolt() if slow == "bolt" else text_of
    sizes = {"batch_rows": 10, "chunk_records": 10, "fetch_records": 20}
    with Works(bolt_, at_most_once=True, **sizes) as works:
        if slow == "sink":
            works.sink.gate.clear()
        send(works, 1_000)
        works.until(lambda: door.calls == (["0"] if slow == "bolt" else []))
        works.until(lambda: works.pipeline.statistics().held_back)
        works.turn(20)
        assert works.stored - works.ledger.emitted_to <= 20
        works.sink.gate.set()
        if slow == "bolt":
            door.open()
        drain(works, below=1_000)
