"""Topologies that are exactly-once, with records of all kinds; wanted.py says what comes of them.

`CRASH_STORES` names the stores (stores.py) of its two tables, the same one twice perhaps.
`control` is made to fail: its sink commits rows and writes the txid down only later.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from headrace import Record, Reject, Retry, RowsRejected, Topology, bolt
from headrace.sinks import Batch, KafkaDeadLetters, Sink, SinkContext
from tests.acceptance.stores import STORES, Site
from tests.acceptance.traces import FOLDER, TOPIC, check, text
from tests.acceptance.wanted import COPIES, OTHERS, ROWS, fails_once, is_rejected, is_unfit
from tests.support.failpoints import install
from topology.sink import Committed, Fence, Kind, Staged

BATCH_ROWS = 600
BATCH_SECONDS = 0.2
NO_INT64 = 2**70

install(os.environ)
_site = Site.here()
_rows, _others = (
    STORES[store](_site, table)
    for store, table in zip(os.environ["CRASH_STORES"].split(","), (ROWS, OTHERS), strict=True)
)
_failed: set[str] = set()


@bolt
def parse(record: Record) -> str:
    place = text(record)
    check(place)
    if is_rejected(record.offset):
        raise Reject("it is trouble")
    return place


@bolt
def copies(place: str) -> Iterator[Any]:
    offset = int(place.partition(":")[2])
    for copy in range(COPIES[ROWS]):
        is_last = copy == COPIES[ROWS] - 1
        yield _rows.row(place, NO_INT64 if is_last and is_unfit(offset) else copy)


@bolt
def again(place: str) -> Any:
    """Fail once; the record's copies are made by then, and are void."""
    if fails_once(int(place.partition(":")[2])) and place not in _failed:
        _failed.add(place)
        raise Retry("it goes well the next time")
    return _others.row(place, 0)


class WithoutTxid(Sink[Any]):
    """Has the rows written, and notes their txids in a file when it is asked the next time."""

    def __init__(self, sink: Sink[Any]) -> None:
        self.name, self.kinds = sink.name, sink.kinds
        self.sink = sink
        self._done: dict[str, int] = {}

    def open(self, context: SinkContext) -> None:
        self.sink.open(replace(context, exactly_once=False))

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        self._done = {}
        noted = self._noted()
        return [Committed(line, epoch, noted.get(line, 0)) for line, epoch in fences]

    def stage(self, group: Batch) -> Staged:
        return Staged(group.shares, group.num_rows, (group,))

    def commit(self, staged: Staged) -> None:
        (FOLDER / "txids").write_text(json.dumps(self._noted() | self._done))
        [group] = staged.parts
        with contextlib.suppress(RowsRejected):  # the others are durable
            self.sink.write(Batch(group.sequence, group.pieces, group.num_rows))
        self._done |= {share.line: share.txid for share in staged.shares}

    def discard(self, staged: Staged) -> None:
        """Nothing was made."""

    def close(self) -> None:
        self.sink.close()

    def _noted(self) -> dict[str, int]:
        path = FOLDER / "txids"
        return dict(json.loads(path.read_text())) if path.exists() else {}


def _two_tables(kind: Kind) -> Topology:
    made = Topology(f"crashing-{kind}", reliability="exactly-once", transactions=kind)
    parsed = made.source(TOPIC).then(parse)
    parsed.then(copies).into(
        _rows.sink(), name=ROWS, batch_rows=BATCH_ROWS, batch_seconds=BATCH_SECONDS
    )
    parsed.then(again).into(
        _others.sink(), name=OTHERS, batch_rows=BATCH_ROWS, batch_seconds=BATCH_SECONDS
    )
    made.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
    return made


def _one_table(sink: Sink[Any]) -> Topology:
    made = Topology("crashing-one-table", reliability="exactly-once")
    made.source(TOPIC).then(parse).then(copies).into(
        sink, name=ROWS, batch_rows=BATCH_ROWS, batch_seconds=BATCH_SECONDS
    )
    made.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
    return made


transactional = _two_tables("transactional")
opaque = _two_tables("opaque")

single = _one_table(_rows.sink())
control = _one_table(WithoutTxid(_rows.sink()))
