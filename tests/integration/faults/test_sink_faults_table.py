"""S09: the table is dropped under a running pipeline."""

from collections import Counter

import pytest

from tests.support.pipeline import KEEP_TRANSACTIONS, Plant
from topology.errors import SinkFailed

pytestmark = pytest.mark.faults


def dropped(plant: Plant) -> None:
    """A hundred rows are in the table, which is then removed while more come."""
    plant.send(*[b"a"] * 100)
    plant.finish()
    assert plant.numbers() == Counter(range(100))
    plant.drop()
    plant.send(*[b"b"] * 200)


def test_at_least_once_dropped_table_is_recreated(tmp_path, spark):
    """Rows that were durable are whoever's dropped them; a batch may be there twice."""
    with Plant("parquet", tmp_path / "warehouse", spark, "at-least-once") as plant:
        dropped(plant)
        plant.finish()
        assert set(plant.numbers()) == set(range(100, 300))
        assert plant.letters_sink.letters == []
        assert plant.problems() == ()


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("kind", KEEP_TRANSACTIONS)
def test_table_without_its_log_ends_the_run(kind, guarantee, tmp_path, spark):
    """Nobody can tell any more what was committed in it, nor whether staged files are there."""
    with Plant(kind, tmp_path / "warehouse", spark, guarantee) as plant:
        dropped(plant)
        with pytest.raises(SinkFailed, match=r"removed or changed while|no log any more"):
            plant.finish()
        assert plant.stored == 100
