"""Readings of weather stations from Kafka into a folder of Parquet files, exactly once.

headrace run examples.manifest.pipeline:topology --config service.toml
"""

from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from headrace import Topology, bolt
from headrace.payloads import json_columns
from headrace.sinks import KafkaSink, ManifestSink

BROKEN_CELSIUS = -999.0  # what a station sends while its sensor does not work


class Sent(TypedDict):
    """A reading as it comes from Kafka."""

    station: str
    at_ms: int
    celsius: float


COLUMNS: list[tuple[str, pa.DataType]] = [
    ("station", pa.string()),
    ("at", pa.timestamp("us", "UTC")),
    ("day", pa.date32()),
    ("celsius", pa.float64()),
]


@bolt(vectorised=True)
def dated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out what a broken sensor sent, and say of which day the others are."""
    good = batch.filter(pc.not_equal(batch["celsius"], pa.scalar(BROKEN_CELSIUS)))
    at = good["at_ms"].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    good = good.drop_columns(["at_ms"])
    return good.append_column("at", at).append_column("day", at.cast(pa.date32()))


topology = Topology("weather", reliability="exactly-once")
readings = topology.source("stations").then(json_columns(Sent)).then(dated)
table = ManifestSink("readings", schema=pa.schema(COLUMNS), partition_by=["day"])
readings.into(table, name="readings", batch_rows=1_000)
topology.dead_letters.into(KafkaSink("stations.dead"))
