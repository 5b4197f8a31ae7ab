"""What ranges that Spark has read hold, and what Spark says of one that its log lacks. Pure."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partition.chunk import Partition
from service.spark_engine.task import RangeRead, TaskRange
from transactions.digest import RangeDigest

LENGTHS = ("topic", "partition", "offset", "coalesce(octet_length(value), 0) AS length")
"""Of Spark's columns of a record, in its SQL, what `range_reads` asks for."""

_FIELDS: "list[pa.Field[Any]]" = [
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("length", pa.int32()),
]
_SCHEMA = pa.schema(_FIELDS)
# What Spark's source says of a log that does not hold a range.
_LOST = re.compile(
    r"Some data may have been lost .*for topic partition ([\w.-]+)-(\d+)\b", re.DOTALL
)


def range_reads(
    ranges: Sequence[TaskRange], lengths: Sequence[pa.RecordBatch]
) -> tuple[RangeRead, ...]:
    """Count and digest each range's records, as the local engine does; in any order they came."""
    read = pa.Table.from_batches([batch.cast(_SCHEMA) for batch in lengths], schema=_SCHEMA)
    reads = []
    for each in ranges:
        of_topic = pc.equal(read["topic"], pa.scalar(each.partition.topic, pa.string()))
        of_number = pc.equal(read["partition"], pa.scalar(each.partition.number, pa.int32()))
        found = read.filter(pc.and_(of_topic, of_number))
        offsets = found["offset"].to_numpy()
        order = np.argsort(offsets, kind="stable")
        digest = RangeDigest()
        digest.add(offsets[order], found["length"].to_numpy().astype(np.int64)[order])
        # Spark's source does not say which leader wrote a record; see NativeLogs.
        reads.append(RangeRead(each.partition, digest.count, digest.hex(), None))
    return tuple(reads)


def lost_partition(said: str, partitions: Collection[Partition]) -> Partition | None:
    """The partition of which Spark says that its log does not hold a range; None: it does not."""
    found = _LOST.search(said)
    lost = Partition(found[1], int(found[2])) if found is not None else None
    return lost if lost in partitions else None
