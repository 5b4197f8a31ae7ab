"""The account: where every record is, and what keeps it from closing."""

import json
from dataclasses import replace

import numpy as np

from service.observability.snapshot import PartitionSummary, RunSummary
from service.pipeline.trees import OutcomeCounters

WRITTEN, DEAD_LETTERED = 1, 2

CLOSED = RunSummary(
    read=10, written=6, rows=12, filtered=3, retried=2, dead_lettered=1, unresolved=0, given_up=0,
    lost=0,
    seconds=2.0, halted={},
    partitions={"t-0": PartitionSummary(7, 7, 7), "t-1": PartitionSummary(5, 5, 5)},
    table="/warehouse/t", dead_letters="t.dead", caught_up=True,
)  # fmt: skip


def test_summary_reconciles_when_all_is_committed():
    assert CLOSED.problems() == []
    assert CLOSED.losses() == []


def test_missing_record_is_a_loss():
    account = replace(CLOSED, written=5)
    assert account.losses() == ["10 records were read but 9 are accounted for"]
    assert account.problems() == account.losses()


def test_unresolved_record_is_a_problem_but_no_loss():
    account = replace(CLOSED, written=5, unresolved=1)
    assert account.losses() == []
    assert account.problems() == ["1 records are unresolved"]


def test_uncommitted_offset_is_a_problem():
    account = replace(CLOSED, partitions={"t-0": PartitionSummary(5, 7, 7)})
    assert account.problems() == ["t-0: committed 5, 2 short of where the log ended"]
    assert account.partitions["t-0"].lag == 2


def test_summary_as_json_has_its_keys():
    facts = json.loads(json.dumps(CLOSED.as_json()))
    assert facts["records_per_second"] == 5.0
    assert facts["partitions"]["t-0"] == {
        "committed": 7,
        "last_completed_offset": 7,
        "log_end": 7,
        "goal": None,
    }
    assert {"read", "rows", "filtered", "retried", "dead_lettered", "unresolved", "table",
            "dead_letters"} <= facts.keys()  # fmt: skip


def test_run_of_zero_seconds_has_no_rate():
    assert replace(CLOSED, seconds=0.0).records_per_second == 0.0


def test_outcome_counters_count_each_tree_once():
    counters = OutcomeCounters()
    flags = np.array([0, WRITTEN, WRITTEN | DEAD_LETTERED, DEAD_LETTERED, WRITTEN, 0, 0], np.uint8)
    counters.resolved(np.bincount(flags, minlength=4))
    assert (counters.filtered, counters.written, counters.dead_lettered) == (3, 2, 2)
    counters.resolved(np.bincount(flags[:0], minlength=4))
    assert counters.filtered + counters.written + counters.dead_lettered == len(flags)


def test_records_beyond_the_goal_are_no_problem():
    account = replace(CLOSED, partitions={"t-0": PartitionSummary(5, 5, 9, goal=5)})
    assert account.problems() == []
    assert account.partitions["t-0"].lag == 4


def test_halted_partition_is_a_problem():
    account = replace(CLOSED, halted={"t[1]": "it has a corrupt record"})
    assert account.losses() == []
    assert account.problems() == ["t[1] is halted: it has a corrupt record"]
