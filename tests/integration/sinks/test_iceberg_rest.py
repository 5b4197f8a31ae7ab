import uuid
from dataclasses import replace
from typing import Any

import pytest

from headrace import reference
from sinks import IcebergSink
from sinks.references import needs_spark, read_reference
from sinks.tables.iceberg_files import CatalogStorage
from tests.support.batches import LINE, SCHEMA, group, rows, write
from tests.support.delta_table import race_together
from tests.support.iceberg_table import EXPIRE_AT_ONCE, Table
from tests.support.seaweed import READER
from topology.errors import SinkFailed
from topology.sink import Committed, SinkContext

pytestmark = pytest.mark.integration


@pytest.fixture
def table(seaweed):
    bucket = f"tables-{uuid.uuid4().hex[:8]}"
    made = Table(f"s3://{bucket}", seaweed.catalogue(bucket))
    yield made
    made.close()


@pytest.mark.nightly
def test_two_writers_race_and_no_row_is_lost_or_twice(table):
    lines = ["orders[0]", "orders[1]"]
    table.fenced(*lines)
    assert race_together(table, lines, 8) == table.numbers()


def test_credentials_that_expired_are_asked_for_again(table):
    sink = table.fenced()
    writer = sink._stager
    store = writer.storage
    assert isinstance(store, CatalogStorage)
    expired = dict(store.properties) | {"s3.secret-access-key": "expired"}
    sink._stager = replace(writer, storage=replace(store, properties=expired))
    with pytest.raises(OSError, match="AWS Error"):
        sink.stage(group(1, 1))
    sink.commit(sink.stage(group(1, 1)))
    assert table.numbers() == [1]


def test_a_reference_is_read_with_what_the_catalogue_gives(table):
    write(table.sink(partition_by=["place"]), rows(1, 2, place="é"))
    properties = {"catalog": "lake"}
    made = reference("orders", format="iceberg", key="number", properties=properties)
    assert not needs_spark(made, table.storage)
    found = read_reference(made, table.storage, None)
    assert sorted(found["number"].to_pylist()) == [1, 2]
    assert set(found["place"].to_pylist()) == {"é"}


def test_a_key_without_the_rights_is_told_which_one_it_lacks(table, seaweed):
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


def test_expire_removes_snapshots_and_no_row(table):
    sink = table.fenced()
    table.set_properties(EXPIRE_AT_ONCE)
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
