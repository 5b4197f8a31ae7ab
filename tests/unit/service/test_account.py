"""The account: where every record is, and what keeps it from closing."""

import json
from dataclasses import replace

import numpy as np

from service.pipeline.trees import OutcomeCounters
from service.snapshot import PartitionSummary, RunSummary

WRITTEN, DEAD_LETTERED = 1, 2

CLOSED = RunSummary(
    read=10, written=6, rows=12, filtered=3, retried=2, dead_lettered=1, unresolved=0, given_up=0,
    lost=0,
    seconds=2.0, halted={},
    partitions={"t-0": PartitionSummary(7, 7, 7), "t-1": PartitionSummary(5, 5, 5)},
    table="/warehouse/t", dead_letters="t.dead", caught_up=True,
)  # fmt: skip


def test_an_account_closes_when_every_record_is_somewhere_and_all_is_committed():
    assert CLOSED.problems() == []
    assert CLOSED.losses() == []


def test_a_record_that_is_nowhere_is_a_loss():
    account = replace(CLOSED, written=5)
    assert account.losses() == ["10 records were read but 9 are accounted for"]
    assert account.problems() == account.losses()


def test_an_unresolved_record_is_a_gap_but_no_loss():
    account = replace(CLOSED, written=5, unresolved=1)
    assert account.losses() == []
    assert account.problems() == ["1 records are unresolved"]


def test_an_offset_that_is_not_committed_is_a_gap_by_its_partition():
    account = replace(CLOSED, partitions={"t-0": PartitionSummary(5, 7, 7)})
    assert account.problems() == ["t-0: committed 5, 2 short of where the log ended"]
    assert account.partitions["t-0"].lag == 2


def test_as_json_it_has_what_a_reader_needs():
    facts = json.loads(json.dumps(CLOSED.as_json()))
    assert facts["records_per_second"] == 5.0
    assert facts["partitions"]["t-0"] == {
        "committed": 7,
        "frontier": 7,
        "log_end": 7,
        "goal": None,
    }
    assert {"read", "rows", "filtered", "retried", "dead_lettered", "unresolved", "table",
            "dead_letters"} <= facts.keys()  # fmt: skip


def test_a_run_of_no_time_has_no_rate():
    assert replace(CLOSED, seconds=0.0).records_per_second == 0.0


def test_outcome_counters_count_each_tree_once():
    counters = OutcomeCounters()
    flags = np.array([0, WRITTEN, WRITTEN | DEAD_LETTERED, DEAD_LETTERED, WRITTEN, 0, 0], np.uint8)
    counters.acked(flags)
    assert (counters.filtered, counters.written, counters.dead_lettered) == (3, 2, 2)
    counters.acked(flags[:0])
    assert counters.filtered + counters.written + counters.dead_lettered == len(flags)


def test_records_that_came_after_a_finite_runs_goal_keep_nothing_open():
    account = replace(CLOSED, partitions={"t-0": PartitionSummary(5, 5, 9, goal=5)})
    assert account.problems() == []
    assert account.partitions["t-0"].lag == 4


def test_a_halted_partition_keeps_the_account_open_and_says_why():
    account = replace(CLOSED, halted={"t[1]": "it has a corrupt record"})
    assert account.losses() == []
    assert account.problems() == ["t[1] is halted: it has a corrupt record"]
