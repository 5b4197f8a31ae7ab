"""What the oracle lets an offset pass."""

from types import SimpleNamespace

import pytest

from partition.records import Partition
from tests.simulation.errors import Violation
from tests.simulation.kafka import SimLog
from tests.simulation.stored import Seen, StoredOffsets

ONE = Partition("a", 0)


def passes(log, low, high, *, epochs):
    """A process that has stored `low` stores `high`, under these leader epochs."""
    world = SimpleNamespace(cluster=SimpleNamespace(logs={("a-1", ONE): log}))
    sender = SimpleNamespace(fetcher=SimpleNamespace(read_under={}))
    old, new = (
        Seen(offset, 1, "p", epoch, "a-1")
        for offset, epoch in zip((low, high), epochs, strict=True)
    )
    StoredOffsets(world)._passed(sender, ONE, old, new, moved=False)


def written_anew_below(stored, *, start):
    """A log whose records were all read, that a later leader wrote anew; it begins at `start`."""
    log = SimLog(ONE, "a-1")
    for _ in range(stored):
        log.append(1).done = True
    log.truncate(0)
    for _ in range(stored):
        log.append(1)
    log.append(1).done = True
    log.delete_before(start)
    return log


def test_what_was_written_anew_below_the_stored_offset_is_not_passed():
    """Promise 3: the leader tells where its log was cut off."""
    for start in (0, 3):
        with pytest.raises(Violation, match="past a\\[0\\]@"):
            passes(written_anew_below(4, start=start), 4, 5, epochs=(0, 1))


def test_nobody_can_hear_of_it_once_retention_has_deleted_all_of_it():
    """Seed 700044: the leader's table of epochs then begins where the stored offset is."""
    passes(written_anew_below(4, start=4), 4, 5, epochs=(0, 1))
    passes(written_anew_below(4, start=5), 4, 5, epochs=(0, 1))
