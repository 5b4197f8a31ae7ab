"""Iceberg tables whose files are in an object store, maintained and read as a service does it.

The catalogue is in PostgreSQL, by which Spark finds the tables, too; Spark reaches the store by
the properties that the service gives it.
"""

import uuid
from typing import Any

import pyarrow as pa
import pytest

from service.config.settings import load
from service.wiring import spark_driver
from sinks import IcebergSink
from sinks.spark.driver import SparkDriver
from tests.support.batches import LINE, SCHEMA, group
from tests.support.iceberg_table import in_postgres
from tests.support.seaweed import BUCKET, KEY_ID, SECRET
from topology.sink import Committed, Fence, Removal, SinkContext

pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.usefixtures("no_spark"),
]

TARGET_BYTES = 1024 * 1024


@pytest.fixture(scope="module")
def config(seaweed, postgres):
    warehouse = f"s3://{BUCKET}/iceberg"
    name = "spark.sql.catalog.lake"
    given = {
        "kafka": {"bootstrap.servers": "b:9092"},
        "zookeeper": {"hosts": "z:2181"},
        "storage": {
            "warehouse": warehouse,
            "endpoint": seaweed.url,
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
            "catalogs": {"lake": in_postgres(postgres, warehouse) | {"warehouse": warehouse}},
        },
        "spark": {
            "conf": {
                name: "org.apache.iceberg.spark.SparkCatalog",
                f"{name}.type": "jdbc",
                f"{name}.uri": f"jdbc:{postgres.url}",
                f"{name}.jdbc.user": postgres.user,
                f"{name}.jdbc.password": postgres.password,
                f"{name}.jdbc.schema-version": "V1",
                f"{name}.warehouse": warehouse,
            }
        },
    }
    return load(None, given)


@pytest.fixture(scope="module")
def driver(no_spark, config):
    driver = spark_driver("orders", config, ["iceberg", "iceberg-jdbc"])
    yield driver
    driver.close()


@pytest.fixture
def sink(config, driver):
    made: IcebergSink[Any] = IcebergSink(
        f"orders_{uuid.uuid4().hex}", schema=SCHEMA, catalog="lake"
    )
    made.open(SinkContext("p", "s", {}, config.storage.storage(), driver, exactly_once=True))
    yield made
    made.close()


def by_spark(driver: SparkDriver, table: str, *statements: str) -> pa.Table:
    """What Spark finds after statements in which OURS is the table."""
    name = f"lake.default.{table}"

    def job(session: Any) -> pa.Table:
        for statement in (*statements, "REFRESH TABLE OURS"):
            session.sql(statement.replace("OURS", name))
        return session.table(name).toArrow()

    return driver.run(job, group="read")


def test_compaction_between_staging_and_commit_is_harmless(sink, driver):
    """Promise 3: 0 lost, 0 twice."""
    sink.fence([Fence(LINE, 1)])
    for txid in range(1, 4):
        sink.commit(sink.stage(group(txid, txid)))
    staged = sink.stage(group(4, 4))
    for dry_run in (True, False):
        done = sink.compact(TARGET_BYTES, dry_run=dry_run)
        assert (done.files_replaced, done.files_written) == (3, 1)
    assert len(sink.data_files()) == 1
    sink.commit(staged)
    assert sink.vacuum(24) == Removal(0, 0)
    assert sorted(by_spark(driver, sink.table)["number"].to_pylist()) == [1, 2, 3, 4]
    assert sink.committed([LINE]) == [Committed(LINE, 1, 4)]
