"""What a try asks of its tasks."""

import pytest

from partition.records import Partition, Position, Resumed, Transactions
from service.spark_engine.attempts import TryMaker
from tests.worlds.lined import NotingTransactions
from tests.worlds.tasking import SETTINGS
from transactions.groups import GroupPhase, Member, TransactionGroup
from transactions.partition_transactions import TransactionPolicy


@pytest.mark.parametrize("epoch", [4, None])
def test_a_task_hears_which_leader_told_the_end_of_its_range(epoch: int | None) -> None:
    resumed = Resumed(Position(5, 3, "id"), Transactions("transactional"))
    line = NotingTransactions(Partition("t", 0), resumed, TransactionPolicy(by_executors=True), int)
    txid = line.begin(9, epoch).txid
    maker = TryMaker([], SETTINGS, None, dict, lambda place: place)
    group = TransactionGroup(1, (Member(0, line, txid),), GroupPhase.RUNNING)
    (task,) = maker.make(group, 1, lambda _place: 1).tasks
    (told,) = task.ranges
    assert (told.position, told.end, told.leader_epoch) == (Position(5, 3, "id"), 9, epoch)
