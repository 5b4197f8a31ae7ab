"""What each guarantee does with the same records, step by step, compared with a text that is kept.

Run this file with the repository in PYTHONPATH to write the texts anew, and read their difference.
What other threads finish in one stretch of time has no order of its own, and is sorted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace import SKIP, Record, Reject, Retry, Skip, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test
from partition.ledger import RetryPolicy
from service.testing.timeline import Event

FOLDER = Path(__file__).with_name("golden")
GUARANTEES = ["at-most-once", "at-least-once", "exactly-once"]
SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])

# By seconds at which they are sent, and partition. "stumbles" fails in the function bolt at first,
# "late" in the async one; "doomed" fails there always; the second sink refuses the row of "odd".
SENT = {
    0: {0: "good stumbles odd", 1: "skipped good", 2: "late"},
    1: {0: "good good", 2: "rejected good"},
    3: {1: "doomed good odd", 2: "skipped"},
    4: {0: "late stumbles", 1: "good"},
}
UNTIL = 20


class Run:
    def __init__(self, guarantee):
        self.done: list[str] = []
        self.lines: list[str] = []  # of this stretch
        self._seen = 0
        self._others: list[Event] = []
        self._tries: Counter[tuple[str, str]] = Counter()
        self._rows: defaultdict[str, list[str]] = defaultdict(list)
        self._guarantee = guarantee
        self._test = self._prepared()

    def text(self):
        with self._test as test:
            now = 0
            for seconds in (*SENT, UNTIL):
                while now < seconds:
                    now += 1
                    test.advance(1)
                    self._stretch_ends(f"at {now} s")
                for number, kinds in SENT.get(seconds, {}).items():
                    partition = test._partition("orders", number)
                    for kind in kinds.split():
                        test._log.append(partition, kind.encode(), timestamp_ms=0)
                test._settle()
                self._stretch_ends(f"at {now} s, with new records")
            assert test.unresolved == 0
        return "\n".join(self.done) + "\n"

    def _prepared(self):
        @bolt
        def parse(record: Record) -> dict[str, Any] | Skip:
            kind = (record.value or b"").decode()
            row = {"id": f"{record.partition}/{record.offset}", "n": record.offset}
            if kind == "rejected":
                raise Reject("not wanted")
            self._fail_first(kind, "stumbles", row)
            return SKIP if kind == "skipped" else {**row, "kind": kind}

        @bolt
        async def price(row: dict[str, Any]) -> dict[str, Any]:
            self._fail_first(row["kind"], "late", row)
            if row["kind"] == "doomed":
                raise Retry("never")
            return {"id": row["id"], "n": row["n"]}

        @bolt
        def twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
            yield {"id": row["id"], "n": row["n"]}
            yield {"id": row["id"], "n": "odd" if row["kind"] == "odd" else row["n"] + 100}

        @bolt(vectorised=True, row_by_row=True, columns=["partition", "offset"])
        def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
            texts = [pc.cast(batch[name], pa.string()) for name in ("partition", "offset")]
            ids = pc.binary_join_element_wise(*texts, "/")
            return pa.RecordBatch.from_arrays([ids, batch["offset"]], schema=SCHEMA)

        topology = Topology("golden", reliability=self._guarantee)
        records = topology.source("orders")
        rows = records.then(parse)
        rows.then(price).into(MemorySink[Any]("priced", schema=SCHEMA))
        rows.then(twice).into(MemorySink[Any]("doubled", schema=SCHEMA), batch_rows=3)
        records.then(columns).into(MemorySink[Any]("raw", schema=SCHEMA))
        topology.dead_letters.into(MemoryDeadLetters())
        test = topology_test(topology, retries=RetryPolicy(limit=2, jitter=0), seed=7)
        self._watch(test)
        return test

    def _watch(self, test):
        store, commit = test._store, test._store.commit

        def stored(progress):
            self._emissions()
            for partition, each in sorted(progress.items()):
                opened = () if each.transactions is None else each.transactions.open
                ranges = [(f"{t.txid}.{t.attempt}", t.range) for t in opened]
                more = "".join(f", {name}: {of.first}-{of.end}" for name, of in ranges)
                self.lines.append(f"  store {partition} {each.position.offset}{more}")
            return commit(progress)

        store.commit = stored
        for sink in test._tables.values():
            sink.commit = self._committing(sink)

    def _committing(self, sink):
        commit = sink.commit

        def committed(staged):
            begin = len(sink.rows)
            commit(staged)
            ids = [row["id"] for row in sink.rows[begin:]]
            for share in staged.shares:
                mine = [each for each in ids if share.line == f"orders[{each[0]}]"]
                self._rows[f"{sink.name}, {share.line}, txid {share.txid}"] += mine
            if not staged.shares:
                self._rows[sink.name] += ids

        return committed

    def _fail_first(self, kind, failing, row):
        if kind == failing and self._guarantee != "at-most-once":
            self._tries[kind, row["id"]] += 1
            if self._tries[kind, row["id"]] == 1:
                raise Retry("not yet")

    def _emissions(self):
        events = self._test.timeline[self._seen :]
        new = [event for event in events if event.what in ("read", "retried")]
        self._others += [event for event in events if event.what not in ("read", "retried")]
        self._seen += len(events)
        for (number, attempt), events in groupby(new, lambda e: (e.partition, e.attempt)):
            offsets = " ".join(str(event.offset) for event in events)
            word = "emit" if attempt == 1 else f"try {attempt} of"
            self.lines.append(f"  {word} orders[{number}] {offsets}")

    def _stretch_ends(self, title):
        """Add what other threads had a part in, sorted, and the stretch's title before it all."""
        self._emissions()
        others = [event for event in self._others if event.what != "written"]
        for about, events in groupby(sorted(others, key=_about), _about):
            what, partition, step, reason = about
            why = f" in {step}: {reason}" if step else ""
            offsets = " ".join(str(offset) for offset in sorted(event.offset for event in events))
            self.lines.append(f"  {what} orders[{partition}] {offsets}{why}")
        self.lines += [
            f"  rows of {sink}: {' '.join(sorted(self._rows[sink])) or 'none'}"
            for sink in sorted(self._rows)
        ]
        self._others.clear()
        self._rows.clear()
        if self.lines:
            self.done += [title, *self.lines]
            self.lines.clear()


def _about(event):
    return event.what, event.partition, event.step or "", event.reason or ""


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_timeline_equals_the_golden_one(guarantee):
    assert Run(guarantee).text() == (FOLDER / f"{guarantee}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for each in GUARANTEES:
        (FOLDER / f"{each}.txt").write_text(Run(each).text(), encoding="utf-8")
