import threading

import pyarrow as pa
import pytest

from sinks.spark.spool import Spool
from sinks.spark.sql.copy_text import encode
from sinks.spark.sql.examiner import Way
from sinks.spark.sql.load import Load
from sinks.spark.sql.postgres import Statements
from sinks.spark.sql.trials import Trials
from tests.support.patience import seconds
from topology.transactional import Group, Share

WAY = Way(Statements("s", "t", ["n"]), frozenset(), [], None)


def load(*numbers: int, longest: int = 0) -> Load:
    lines = encode(pa.table({"n": pa.array(numbers, pa.int64())})).lines
    return Load(lines, Spool("/nowhere", "test"), "load", longest_indexed=longest)


def group(attempt: int = 1, line: str = "orders[0]") -> Group:
    return Group(1, (Share(line, 1, 1, attempt, 0, 1, "", 1),), [], 1)


def test_only_tables_that_may_refuse_a_row_and_long_indexed_values_need_a_trial() -> None:
    trials = Trials()
    assert not trials.is_needed(WAY, group(), load(1))
    assert trials.is_needed(WAY._replace(trial_reason="it has a constraint"), group(), load(1))
    assert not trials.is_needed(WAY._replace(trial_reason="it has a constraint"), group(), load())
    assert trials.is_needed(WAY, group(), load(1, longest=2_001))


def test_what_may_have_ended_the_process_before_is_tried_until_the_line_has_committed() -> None:
    trials = Trials()
    trials.fenced(["orders[0]"])
    assert not trials.is_needed(WAY, group(attempt=1), load(1))
    assert trials.is_needed(WAY, group(attempt=2), load(1))
    assert not trials.is_needed(WAY, group(attempt=2, line="orders[1]"), load(1))
    trials.settled(load(1), ["orders[0]"])
    assert not trials.is_needed(WAY, group(attempt=2), load(1))


def test_a_trial_waits_for_what_was_tried_before_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials, first = Trials(), load(1)
    trials.wait()
    trials.passed(first)
    waiting = threading.Thread(target=trials.wait)
    waiting.start()
    trials.settled(first)
    waiting.join(seconds(30))
    assert not waiting.is_alive()
    monkeypatch.setattr("sinks.spark.sql.trials._PATIENCE_SECONDS", 0.01)
    trials.passed(load(2))
    trials.wait()
