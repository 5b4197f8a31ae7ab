"""Iceberg tables behind SeaweedFS's REST catalogue, in its object store."""

import multiprocessing
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace import reference
from sinks import IcebergSink
from sinks.references import needs_spark, read_reference
from sinks.tables.iceberg_files import CatalogStorage
from tests.support.delta_table import LINE, SCHEMA, group, rows, write
from tests.support.iceberg_table import Table, racing
from tests.support.patience import seconds
from tests.support.seaweed import READER, EmbeddedSeaweed
from topology.errors import SinkFailed, SinkFenced
from topology.sink import Committed, SinkContext

pytestmark = pytest.mark.integration


@pytest.fixture
def table(seaweed: EmbeddedSeaweed) -> Iterator[Table]:
    bucket = f"tables-{uuid.uuid4().hex[:8]}"
    made = Table(f"s3://{bucket}", seaweed.catalogue(bucket))
    yield made
    made.close()


def test_rest_catalogue_commits_rows_and_fences_zombies(table: Table) -> None:
    """Promise 9."""
    sink = table.fenced(partition_by=["place", "bucket(2, number)"])
    staged = sink.stage(group(1, 1, 2))
    sink.commit(staged)
    sink.commit(staged)
    late = sink.stage(group(2, 3))
    assert table.fenced(epoch=2).committed([LINE]) == [Committed(LINE, 2, 1)]
    with pytest.raises(SinkFenced):
        sink.commit(late)
    sink.discard(late)
    write(table.sink(), rows(4))
    assert table.numbers() == [1, 2, 4]
    assert table.numbers("number == 2") == [2]
    files = table.sink().data_files()
    assert len(files) == 2
    assert all(file.startswith(table.theirs().location()) for file in files)


def test_two_writers_race_and_no_row_is_lost_or_twice(table: Table) -> None:
    lines = ["orders[0]", "orders[1]"]
    table.fenced(*lines)
    context = multiprocessing.get_context("spawn")
    racers = [
        context.Process(target=racing, args=(table.storage, line, number, 8))
        for number, line in enumerate(lines)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(seconds(120.0))
    assert [racer.exitcode for racer in racers] == [0, 0]
    assert table.numbers() == [1000 * n + txid for n in range(2) for txid in range(1, 9)]


def test_credentials_that_expired_are_asked_for_again(table: Table) -> None:
    sink = table.fenced()
    writer = sink._stager
    assert writer is not None
    store = writer.storage
    assert isinstance(store, CatalogStorage)
    expired = dict(store.properties) | {"s3.secret-access-key": "expired"}
    sink._stager = replace(writer, storage=replace(store, properties=expired))
    with pytest.raises(OSError, match="AWS Error"):
        sink.stage(group(1, 1))
    sink.commit(sink.stage(group(1, 1)))
    assert table.numbers() == [1]


def test_a_reference_is_read_with_what_the_catalogue_gives(table: Table) -> None:
    write(table.sink(partition_by=["place"]), rows(1, 2, place="é"))
    properties = {"catalog": "lake"}
    made = reference("orders", format="iceberg", key="number", properties=properties)
    assert not needs_spark(made, table.storage)
    found = read_reference(made, table.storage, None)
    assert sorted(found["number"].to_pylist()) == [1, 2]
    assert set(found["place"].to_pylist()) == {"é"}


def test_check_uses_the_catalogues_rights_and_leaves_nothing(table: Table) -> None:
    sink = table.sink()
    assert sink.probe() == "create, load, commit to and drop a table in default"
    assert not table.catalog.namespace_exists("default")
    sink = table.fenced()
    sink.commit(sink.stage(group(1, 1)))
    assert sink.probe() == "load and commit to default.orders"
    assert table.catalog.list_tables("default") == [("default", "orders")]
    assert "headrace.checked-at" in table.theirs().properties
    sink.commit(sink.stage(group(2, 2)))
    assert table.numbers() == [1, 2]


def test_a_key_without_the_rights_is_told_which_one_it_lacks(
    table: Table, seaweed: EmbeddedSeaweed
) -> None:
    table.fenced()
    key_id, secret = READER
    reads = dict(table.storage.catalogs["lake"]) | {
        "client.access-key-id": key_id,
        "client.secret-access-key": secret,
    }
    storage = replace(table.storage, catalogs={"lake": reads})
    for name in ("orders", "others"):
        sink: IcebergSink[Any] = IcebergSink(name, schema=SCHEMA, catalog="lake")
        sink.open(SinkContext("p", "s", {}, storage, None))
        with pytest.raises(SinkFailed, match="cannot"):
            sink.probe()
        sink.close()


def test_expire_removes_snapshots_and_no_row(table: Table) -> None:
    sink = table.fenced()
    with table.theirs().transaction() as change:
        change.set_properties(
            {
                "history.expire.max-snapshot-age-ms": "1",
                "history.expire.min-snapshots-to-keep": "1",
            }
        )
    for txid in (1, 2, 3):
        sink.commit(sink.stage(group(txid, txid)))
    before = len(table.theirs().metadata.snapshots)
    foretold = table.sink().expire(dry_run=True)
    assert table.sink().expire() == foretold
    assert foretold.versions_removed == before - len(table.theirs().metadata.snapshots) > 0
    sink.commit(sink.stage(group(4, 4)))
    assert len(table.theirs().metadata.snapshots) <= 2
    assert table.numbers() == [1, 2, 3, 4]
    assert table.sink().committed([LINE]) == [Committed(LINE, 1, 4)]
