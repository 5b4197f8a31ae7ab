"""A task's catalogue knows its ranges, and nothing else."""

import pytest

from partition.catalogue import Log, LogEnd, Topic
from partition.chunk import Partition
from partition.errors import TopicMissing
from partition.position import Position
from service.spark_engine.range_catalogue import RangeCatalogue
from service.spark_engine.task import TaskRange


@pytest.fixture
def catalogue() -> RangeCatalogue:
    made = RangeCatalogue(
        [
            TaskRange(Partition("b", 3), Position(5, 2, "id"), 9),
            TaskRange(Partition("b", 1), Position(0, None, "id"), 4),
            TaskRange(Partition("a", 0), Position(7), 8),
        ]
    )
    made.open()
    return made


def test_topics_have_the_partitions_of_their_ranges(catalogue: RangeCatalogue) -> None:
    found = catalogue.topics().result(0)
    assert found == {"a": Topic("a", None, (0,)), "b": Topic("b", "id", (1, 3))}
    assert catalogue.topic("b").result(0) == found["b"]
    with pytest.raises(TopicMissing):
        catalogue.topic("c").result(0)


def test_a_log_begins_and_ends_with_its_range(catalogue: RangeCatalogue) -> None:
    found = catalogue.log(Partition("b", 3)).result(0)
    assert found == Log(5, 9, "id", leader_epoch=2)
    with pytest.raises(TopicMissing):
        catalogue.log(Partition("b", 0)).result(0)


def test_ends_are_those_of_the_ranges(catalogue: RangeCatalogue) -> None:
    asked = [Partition("a", 0), Partition("b", 1), Partition("b", 2)]
    assert catalogue.ends(asked).result(0) == {asked[0]: LogEnd(8), asked[1]: LogEnd(4)}
    catalogue.close()
