"""Topologies that are exactly-once, with records of all kinds; wanted.py says what comes of them.

`control` is made to fail: its sink commits rows and writes the txid down only later.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace import Record, Reject, Retry, RowsRejected, Topology, bolt
from headrace.sinks import Batch, DeltaSink, KafkaSink
from tests.acceptance.traces import FOLDER, TOPIC, text
from tests.acceptance.wanted import COPIES, fails_once, is_rejected, is_unfit
from topology.transactional import Committed, Fence, Group, Staged

BATCH_ROWS = 1_500
BATCH_SECONDS = 0.5
NO_INT64 = 2**70

_failed: set[str] = set()


@dataclass
class Copy:
    place: str
    copy: int


@dataclass
class Other:
    place: str


@bolt
def parse(record: Record) -> str:
    if is_rejected(record.offset):
        raise Reject("it is trouble")
    return text(record)


@bolt
def copies(place: str) -> Iterator[Copy]:
    offset = int(place.partition(":")[2])
    for copy in range(COPIES):
        is_last = copy == COPIES - 1
        yield Copy(place, NO_INT64 if is_last and is_unfit(offset) else copy)


@bolt
def again(place: str) -> Other:
    """Fail once; the record's copies are made by then, and are void."""
    if fails_once(int(place.partition(":")[2])) and place not in _failed:
        _failed.add(place)
        raise Retry("it goes well the next time")
    return Other(place)


class WithoutTxid(DeltaSink[Copy]):
    """Commits the rows, and the txids in a file of their own when it is asked the next time."""

    _done: dict[str, int]

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        self._done = {}
        noted = self._noted()
        return [Committed(line, epoch, noted.get(line, 0)) for line, epoch in fences]

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        noted = self._noted()
        return [Committed(line, 0, noted.get(line, 0)) for line in lines]

    def stage(self, group: Group) -> Staged:
        return Staged(group.shares, group.num_rows, (group,))

    def commit(self, staged: Staged) -> None:
        (FOLDER / "txids").write_text(json.dumps(self._noted() | self._done))
        [group] = staged.parts
        with contextlib.suppress(RowsRejected):  # the others are durable
            self.write(Batch(group.number, group.pieces, group.num_rows))
        self._done |= {share.line: share.txid for share in staged.shares}

    def discard(self, staged: Staged) -> None:
        """Nothing was made."""

    def _noted(self) -> dict[str, int]:
        path = FOLDER / "txids"
        return dict(json.loads(path.read_text())) if path.exists() else {}


def _two_tables(kind: Literal["transactional", "opaque"]) -> Topology:
    made = Topology(f"crashing-{kind}", reliability="exactly-once", transactions=kind)
    parsed = made.source(TOPIC).then(parse)
    parsed.then(copies).into(
        DeltaSink("rows", schema=Copy), batch_rows=BATCH_ROWS, batch_seconds=BATCH_SECONDS
    )
    parsed.then(again).into(
        DeltaSink("others", schema=Other), batch_rows=BATCH_ROWS, batch_seconds=BATCH_SECONDS
    )
    made.dead_letters.into(KafkaSink(f"{TOPIC}.dead"))
    return made


def _one_table(sink: DeltaSink[Copy]) -> Topology:
    made = Topology("crashing-one-table", reliability="exactly-once")
    made.source(TOPIC).then(parse).then(copies).into(
        sink, batch_rows=BATCH_ROWS, batch_seconds=BATCH_SECONDS
    )
    made.dead_letters.into(KafkaSink(f"{TOPIC}.dead"))
    return made


transactional = _two_tables("transactional")
opaque = _two_tables("opaque")

single = _one_table(DeltaSink("rows", schema=Copy))
control = _one_table(WithoutTxid("rows", schema=Copy))
