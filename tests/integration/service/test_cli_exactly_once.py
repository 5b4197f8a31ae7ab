"""What an operator sees of transactions, and does with files, around a crash: on real servers."""

from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.failpoints import VARIABLE
from tests.support.places import Folder, publish

pytestmark = pytest.mark.integration

RECORDS = 2_000
PARTITIONS = 2
TRIES = 5  # the commit may have had all that was open; then nothing is behind it
RUN = ("run", "flow:topology", "--until-caught-up", "--json")
FLOW = """
    import os
    from typing import TypedDict
    from headrace import Record, Topology, bolt
    from headrace.sinks import DeltaSink, MemoryDeadLetters
    from tests.support.failpoints import install

    install(os.environ)

    class Number(TypedDict):
        number: int

    @bolt
    def parse(record: Record) -> Number:
        return {"number": int(record.value or b"")}

    topology = Topology(os.environ["TOPIC"], reliability="exactly-once")
    numbers = topology.source(os.environ["TOPIC"]).then(parse)
    numbers.into(DeltaSink("numbers", schema=Number), batch_rows=100, batch_seconds=0.1)
    topology.dead_letters.into(MemoryDeadLetters())
"""


class Place(Folder):
    def numbers(self) -> Counter[int]:
        facts = self.facts("tables", "files", "flow:topology", "numbers")
        rows = (pq.ParquetFile(file).read()["number"].to_pylist() for file in facts["files"])
        return Counter(number for each in rows for number in each)

    def status(self) -> dict[str, Any]:
        return self.facts("status", "flow:topology", "--sinks")


@pytest.fixture
def place(tmp_path, topic, kafka, zookeeper):
    made = Place(tmp_path, topic(PARTITIONS), kafka.address, zookeeper.address, FLOW)
    made.configure(f"""
        [storage]
        warehouse = "{tmp_path / "warehouse"}"
        [pipeline]
        max_pending = 600
        chunk_records = 100
        commit_interval_seconds = 0.05
        [transactions]
        plan_records = 100
    """)
    return made


def test_operator_sees_replays_and_compacts_files_in_between(place, kafka):
    """What is foretold comes true, and a compaction changes neither rows nor transactions."""
    published, replayed = 0, []
    for _ in range(TRIES):
        for number in range(PARTITIONS):
            values = map(str, range(published + number, published + RECORDS, PARTITIONS))
            publish(kafka.address, place.name, list(values), partition=number)
        published += RECORDS
        assert place.headrace(*RUN, **{VARIABLE: "sink_after_commit:3:kill"}).code < 0
        before = place.status()
        assert before["reliability"] == "exactly-once"
        lines = before["partitions"].values()
        done = [txid for line in lines for txid in line["restart"]["done"]]
        replayed = [txid for line in lines for txid in line["restart"]["replayed"]]
        assert done, "the commit after which it was killed"
        if replayed:
            break
    assert replayed, "what was open behind it"
    for line in lines:
        txids = [each["txid"] for each in line["open"]]
        assert sorted(line["restart"]["done"] + line["restart"]["replayed"]) == txids
        last = (line["restart"]["done"] or [line["committed_txid"]])[-1]
        assert line["sinks"]["numbers"]["txid"] == last
    there = place.numbers()
    facts = place.facts("tables", "compact", "flow:topology")
    assert facts["sinks"]["numbers"]["outcome"] == "compacted"
    assert place.numbers() == there
    still = place.status()
    for name, line in before["partitions"].items():
        for key in ("committed", "open", "sinks", "restart"):
            assert still["partitions"][name][key] == line[key]
    account = place.run()
    assert account["rows"] == published - there.total()
    assert place.numbers() == Counter(range(published))
    after = place.status()
    assert all(line["open"] == [] for line in after["partitions"].values())
    assert all(line["restart"]["halts"] is None for line in after["partitions"].values())
