"""The account: where every record is, and what keeps it from closing."""

import json
from dataclasses import replace

import numpy as np

from service.pipeline.trees import Tally
from service.snapshot import Account, PartitionAccount

SUNK, LETTERED = 1, 2

CLOSED = Account(
    read=10, sunk=6, rows=12, filtered=3, retried=2, dead_lettered=1, unresolved=0, given_up=0,
    lost=0,
    seconds=2.0, halted={},
    partitions={"t-0": PartitionAccount(7, 7, 7), "t-1": PartitionAccount(5, 5, 5)},
    table="/warehouse/t", dead_letters="t.dead", caught_up=True,
)  # fmt: skip


def test_an_account_closes_when_every_record_is_somewhere_and_all_is_committed():
    assert CLOSED.gaps() == []
    assert CLOSED.losses() == []


def test_a_record_that_is_nowhere_is_a_loss():
    account = replace(CLOSED, sunk=5)
    assert account.losses() == ["10 records were read but 9 are accounted for"]
    assert account.gaps() == account.losses()


def test_an_unresolved_record_is_a_gap_but_no_loss():
    account = replace(CLOSED, sunk=5, unresolved=1)
    assert account.losses() == []
    assert account.gaps() == ["1 records are unresolved"]


def test_an_offset_that_is_not_committed_is_a_gap_by_its_partition():
    account = replace(CLOSED, partitions={"t-0": PartitionAccount(5, 7, 7)})
    assert account.gaps() == ["t-0: committed 5, 2 short of where the log ended"]
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


def test_a_tally_counts_each_tree_once_by_what_became_of_it():
    tally = Tally()
    flags = np.array([0, SUNK, SUNK | LETTERED, LETTERED, SUNK, 0, 0], np.uint8)
    tally.acked(flags)
    assert (tally.filtered, tally.sunk, tally.dead_lettered) == (3, 2, 2)
    tally.acked(flags[:0])
    assert tally.filtered + tally.sunk + tally.dead_lettered == len(flags)


def test_records_that_came_after_a_finite_runs_goal_keep_nothing_open():
    account = replace(CLOSED, partitions={"t-0": PartitionAccount(5, 5, 9, goal=5)})
    assert account.gaps() == []
    assert account.partitions["t-0"].lag == 4


def test_a_halted_partition_keeps_the_account_open_and_says_why():
    account = replace(CLOSED, halted={"t[1]": "it has a corrupt record"})
    assert account.losses() == []
    assert account.gaps() == ["t[1] is halted: it has a corrupt record"]
