"""What tasks have put into files, on its way into a sink of the driver's."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from service.spark_engine.handed import Handed, HandsOn
from service.spark_engine.spool import SpoolStager
from sinks.memory import MemorySink
from topology.transactional import Group, Share, Staged

SHARES = tuple(Share(f"t[{number}]", 1, 1, 1, 0, 5, "0" * 32, 3) for number in range(2))


class Choking(MemorySink[Any]):
    """Breaks on one value."""

    def stage(self, group: Group) -> Staged:
        if any(4 in piece for piece in group.pieces):
            raise pa.ArrowInvalid("4 cannot be written")
        return super().stage(group)


def test_a_row_on_which_the_sink_breaks_is_rejected_alone_and_its_record_known(
    tmp_path: Path,
) -> None:
    """Promise 13: the engine asks again without the record, which gets its letter."""
    stager = SpoolStager(str(tmp_path / "spool"))
    staged = stager.stage(
        Group(1, SHARES, [[0, 1, 2], [3, 4, 5]], 6, np.array([10, 11, 12, 20, 21, 22]))
    )
    handed = Handed((staged,), stager, is_apart=False)
    found = HandsOn("table", Choking("table")).stage(handed.as_group(1, SHARES))
    assert set(found.rejected) == {4}
    assert (found.shares, found.num_rows) == (SHARES, 5)
    origin = handed.origins[4]
    assert (origin.line, origin.offset) == ("t[1]", 21)
