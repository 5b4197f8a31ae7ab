"""What is really there: the topic's records, the table's rows, the dead letters.

Nothing of the product reads it, so that nothing of the product vouches for itself.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message
from pyarrow import fs

from tests.support.committed_messages import committed_messages

Place: TypeAlias = tuple[int, int]  # a record's partition and offset
Row: TypeAlias = tuple[str, datetime, str, int]  # kind, scheduled hour, carrier, flight: unique
_LOCAL = fs.LocalFileSystem()


@dataclass(frozen=True)
class Topic:
    """Every record of the topic, and what each of them must become."""

    ends: dict[int, int]  # log end by partition
    rows: dict[Row, Place]  # every row wanted, and the record it comes from
    malformed: set[Place]

    @property
    def total(self) -> int:
        return sum(self.ends.values())

    def below(self, stored: Mapping[int, int]) -> tuple[set[Row], set[Place]]:
        """The rows wanted, and the malformed records, below these offsets."""
        rows = {row for row, (number, at) in self.rows.items() if at < stored.get(number, 0)}
        return rows, {place for place in self.malformed if place[1] < stored.get(place[0], 0)}


def read_topic(bootstrap: str, topic: str) -> Topic:
    rows: dict[Row, Place] = {}
    broken: set[Place] = set()
    ends: Counter[int] = Counter()
    for message in committed_messages(bootstrap, topic):
        place = (message.partition() or 0, message.offset() or 0)
        ends[place[0]] = place[1] + 1
        if _is_malformed(message):
            broken.add(place)
            continue
        flight = json.loads(message.value() or b"")
        if flight["dep_time"] is None:
            continue
        hour = datetime.fromisoformat(flight["time_hour"]).astimezone(UTC)
        for kind, time in (("departure", "dep_time"), ("arrival", "arr_time")):
            row = (kind, hour, flight["carrier"], flight["flight"])
            if flight[time] is not None:
                assert row not in rows, f"two flights would be taken for one another: {row}"
                rows[row] = place
    return Topic(dict(ends), rows, broken)


def malformed(bootstrap: str, topic: str) -> set[Place]:
    """The malformed records of a topic, in which flights may be published more than once."""
    return {
        (message.partition() or 0, message.offset() or 0)
        for message in committed_messages(bootstrap, topic)
        if _is_malformed(message)
    }


def read_table(table: Path | str, files: fs.FileSystem = _LOCAL) -> pa.Table:
    """A Delta table's rows, from its log and its files alone."""
    found = [
        pq.read_table(f"{table}/{name}", filesystem=files) for name in _committed(table, files)
    ]
    # Who writes a file chooses which columns may be null, and how text is laid out.
    return pa.concat_tables(found, promote_options="permissive") if found else _NONE


def uncommitted(table: Path) -> set[str]:
    """The files beside a table's own: rows that are about to be committed."""
    there = {str(path.relative_to(table)) for path in table.rglob("*.parquet")}
    # The log is read last: what is committed in between is not taken for uncommitted.
    return {name for name in there if not name.startswith("_")} - _committed(table, _LOCAL).keys()


def _committed(table: Path | str, files: fs.FileSystem) -> dict[str, None]:
    found: dict[str, None] = {}
    there = files.get_file_info(fs.FileSelector(f"{table}/_delta_log", allow_not_found=True))
    for path in sorted(each.path for each in there if each.extension == "json"):
        with files.open_input_stream(path) as entry:
            lines = entry.read().splitlines()
        for action in map(json.loads, lines):
            if "add" in action:
                found[unquote(action["add"]["path"])] = None
            if "remove" in action:
                found.pop(unquote(action["remove"]["path"]))
    return found


def rows_of(table: pa.Table) -> Counter[Row]:
    hours = table["hour"].cast(pa.timestamp("us", "UTC"))  # Spark's INT96 has no time zone
    columns = [table["kind"], hours, table["carrier"], table["flight"]]
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


def dead_letters(bootstrap: str, topic: str) -> Counter[Place]:
    found: Counter[Place] = Counter()
    for message in committed_messages(bootstrap, topic):
        headers: Any = dict(message.headers() or [])
        found[int(headers["headrace.partition"]), int(headers["headrace.offset"])] += 1
    return found


def reasons(bootstrap: str, topic: str) -> list[dict[str, str]]:
    """What the headers of each dead letter say, without their prefix."""
    return [
        {
            name.removeprefix("headrace."): (value or b"").decode()
            for name, value in message.headers() or []
            if isinstance(value, bytes)
        }
        for message in committed_messages(bootstrap, topic)
    ]


def _is_malformed(message: Message) -> bool:
    return (message.key() or b"").startswith(b"malformed-")


_NONE = pa.table(
    {
        "kind": pa.array([], pa.string()),
        "hour": pa.array([], pa.timestamp("us", "UTC")),
        "carrier": pa.array([], pa.string()),
        "flight": pa.array([], pa.int64()),
    }
)
