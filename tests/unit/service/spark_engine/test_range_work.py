"""What tasks have put into files, on its way into a sink of the driver's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.spark_engine.range_buffer import RangeWork
from service.spark_engine.task import RowFileStager
from sinks.memory import MemorySink
from topology.sink import Batch, Share, Staged

SHARES = tuple(Share(f"t[{number}]", 1, 1, 1, 0, 5, "0" * 32, 3) for number in range(2))


class Picky(MemorySink[Any]):
    """Does not take one value."""

    def stage(self, group: Batch) -> Staged:
        place = [row for piece in group.pieces for row in piece].index(4)
        return replace(super().stage(group), num_rows=5, rejected={place: "no 4 please"})


class Broken(MemorySink[Any]):
    """Breaks on whatever comes, and counts."""

    tries = 0

    def stage(self, group: Batch) -> Staged:
        self.tries += 1
        raise ValueError("I/O operation on closed file")


def handed_over(folder: Path) -> RangeWork:
    stager = RowFileStager(str(folder))
    offsets = np.array([10, 11, 12, 20, 21, 22])
    staged = stager.stage(Batch(1, [[0, 1, 2], [3, 4, 5]], 6, SHARES, offsets))
    return RangeWork("table", stager, is_apart=False, made=(staged,))


ASKED = Batch(1, [], 6, SHARES)


def test_of_a_row_that_the_sink_rejects_the_record_is_known(tmp_path: Path) -> None:
    """Promise 13: the engine asks again without the record, which gets its letter."""
    handed = handed_over(tmp_path / "spool")
    found = handed.stage(Picky("table"), ASKED)
    assert set(found.rejected) == {4}
    assert (found.shares, found.num_rows) == (SHARES, 5)
    origin = handed.sources[4]
    assert (origin.line, origin.offset) == ("t[1]", 21)
    assert not list(tmp_path.rglob("*.rows"))


def test_rows_on_which_the_sink_breaks_are_there_for_the_next_try_and_not_divided(
    tmp_path: Path,
) -> None:
    sink = Broken("table")
    handed = handed_over(tmp_path / "spool")
    with pytest.raises(ValueError, match="closed file"):
        handed.stage(sink, ASKED)
    assert sink.tries == 1
    assert handed.made
    assert list(tmp_path.rglob("*.rows"))
