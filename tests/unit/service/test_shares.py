import pytest

from partition.records import Range
from service.pipeline.committers import share_of
from topology.sink import Share
from transactions.partition_transactions import Phase, Transaction


def test_a_share_names_the_line_its_owner_and_what_it_covers() -> None:
    covers = Range(900, 1300, 12, "ab" * 16, 5)
    found = share_of("orders[3]", 7, Transaction(42, 2, covers, Phase.COMMITTING))
    assert found == Share("orders[3]", 7, 42, 2, 900, 1300, "ab" * 16, 0)


def test_what_is_only_planned_is_nobody_s_share() -> None:
    with pytest.raises(ValueError, match=r"orders\[3\] transaction 42 is not sealed"):
        share_of("orders[3]", 7, Transaction(42, 2, Range(900, 1300), Phase.PLANNED))
