"""Every sink that is exactly-once, as `crashing.py` writes to it, and how to read it otherwise.

Both sides have a store: the process under test uses `sink` and `row`, the test all else. What was
written is read by nothing of the product, so that it does not vouch for itself.
"""

import os
import sqlite3
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError

from examples.foreach.target import Order, SqliteOrders
from headrace.sinks import (
    DeltaSink,
    IcebergSink,
    ManifestSink,
    SinkContext,
    SqlSink,
    TopicSink,
    TransactionalForeachSink,
    TransactionalSink,
)
from service.embedded.kafka import EmbeddedKafka
from service.embedded.postgres import EmbeddedPostgres
from tests.acceptance import evidence, table_files, wanted
from tests.acceptance.evidence import Place
from tests.acceptance.wanted import Row
from tests.worlds.committed import committed_values
from tests.worlds.jdbc import rows_of

_PARTITIONS = 2  # of a topic that is written
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Site:
    """Where the stores of one trial are."""

    name: str  # of the trial, which no other one has
    folder: Path
    kafka: str  # address
    database: str = ""  # PostgreSQL's URL, if it is needed
    server: EmbeddedPostgres | None = None  # for the test alone

    @classmethod
    def here(cls) -> Self:
        """In the process under test."""
        names = ("TRIAL_TOPIC", "TRIAL_FOLDER", "CRASH_KAFKA", "CRASH_DATABASE")
        name, folder, kafka, database = (os.environ[each] for each in names)
        return cls(name, Path(folder), kafka, database)

    def environment(self) -> dict[str, str]:
        """What `here` wants beyond what every trial gives, and the database's user."""
        found = {"CRASH_KAFKA": self.kafka, "CRASH_DATABASE": self.database}
        if self.server is not None:
            found |= {"PGUSER": self.server.user, "PGPASSWORD": self.server.password}
        return found

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"


@dataclass(frozen=True)
class Found:
    """How a table differs from what it must be: what is not there, and what is too much."""

    missing: Counter[Any]
    surplus: Counter[Any]


@dataclass
class Copy:
    """A row of most stores."""

    place: str
    copy: int


class Store(ABC):
    """One table, topic or file that only one trial uses."""

    needs_spark: ClassVar[bool] = True
    needs_database: ClassVar[bool] = False
    has_keys: ClassVar[bool] = False  # then a row that is written twice is there once

    def __init__(self, site: Site, table: str) -> None:
        """`table` is one of those of wanted.py."""
        self.site = site
        self.table = table

    def prepare(self, kafka: EmbeddedKafka) -> None:
        """Make what must be there before the first process starts."""
        del kafka  # most make it themselves

    @abstractmethod
    def sink(self) -> TransactionalSink[Any]: ...

    def row(self, place: str, copy: int) -> object:
        """What the sink is given; a `copy` that is no 64-bit integer does not fit."""
        return Copy(place, copy)

    @abstractmethod
    def rows(self) -> Iterable[Row]:
        """What is there now."""

    def found(self, stored: Mapping[int, int], places: Iterable[Place]) -> Found:
        """Compare: rows of records below the stored offsets must be there, later ones may be."""
        every = list(places)
        done = [place for place in every if place[1] < stored.get(place[0], 0)]
        rows = Counter(self.rows())
        return Found(
            Counter(wanted.rows(self.table, done)) - rows,
            rows - Counter(wanted.rows(self.table, every)),
        )


class Delta(Store):
    """A Delta table that is appended to, by its log and its files."""

    def sink(self) -> TransactionalSink[Any]:
        return DeltaSink(self.table, schema=Copy)

    def rows(self) -> Iterable[Row]:
        return _cells(evidence.read_table(self.site.warehouse / self.table), "place", "copy")


@dataclass
class Slot:
    """A row of a table with keys."""

    slot: str
    copy: int
    place: str
    gone: bool


class Upserts(Store):
    """A Delta table with keys: it has the last row of each, unless that deletes it."""

    has_keys = True

    def sink(self) -> TransactionalSink[Any]:
        return DeltaSink(self.table, schema=Slot, key=["slot", "copy"], deleted="gone")

    def row(self, place: str, copy: int) -> object:
        return Slot(wanted.slot_of(place), copy, place, wanted.is_gone(int(place.split(":")[1])))

    def rows(self) -> Iterable[Row]:
        return _cells(evidence.read_table(self.site.warehouse / self.table), "place", "copy")

    def found(self, stored: Mapping[int, int], places: Iterable[Place]) -> Found:
        """Compare: it must be what the records of some length have made, the stored one or more.

        So a transaction that is written twice, with a later one in between, is found.
        """
        counts = Counter((wanted.slot_of(place), copy) for place, copy in self.rows())
        there = {(wanted.slot_of(place), copy): place for place, copy in self.rows()}
        partitions: defaultdict[int, list[Place]] = defaultdict(list)
        for place in places:
            partitions[place[0]].append(place)
        missing: Counter[Any] = Counter()
        for number, of in sorted(partitions.items()):
            theirs = {key: row for key, row in there.items() if row.startswith(f"{number}:")}
            missing.update(_least_wrong(theirs, self.table, of, stored.get(number, 0)))
        return Found(missing, counts - Counter(set(counts)))


class Manifest(Store):
    """A folder of Parquet files with our log."""

    needs_spark = False

    def sink(self) -> TransactionalSink[Any]:
        return ManifestSink(self.table, schema=Copy)

    def rows(self) -> Iterable[Row]:
        return _cells(table_files.of_manifest(self.site.warehouse / self.table), "place", "copy")


class Iceberg(Store):
    """An Iceberg table, by its metadata and its files."""

    def sink(self) -> TransactionalSink[Any]:
        return IcebergSink(self.table, schema=Copy)

    def rows(self) -> Iterable[Row]:
        return _cells(table_files.of_iceberg(self.site.warehouse / self.table), "place", "copy")


class Sql(Store):
    """A table of PostgreSQL's, by a driver of the test's own."""

    needs_database = True

    @property
    def name(self) -> str:
        return f"{self.site.name}-{self.table}"

    def sink(self) -> TransactionalSink[Any]:
        return SqlSink(self.site.database, self.name, schema=Copy)

    def rows(self) -> list[Row]:
        assert self.site.server is not None
        query = f'SELECT place, copy FROM "{self.name}"'  # noqa: S608 - the test's own name
        try:
            found = rows_of(self.site.server, query)
        except Py4JJavaError as error:
            if "does not exist" in str(error):  # the sink makes it
                return []
            raise
        return [(row["place"], row["copy"]) for row in found]


class Topic(Store):
    """A topic, by a consumer of committed messages."""

    needs_spark = False

    @property
    def name(self) -> str:
        return f"{self.site.name}.{self.table}"

    def prepare(self, kafka: EmbeddedKafka) -> None:
        kafka.create_topic(self.name, _PARTITIONS)

    def sink(self) -> TransactionalSink[Any]:
        return TopicSink(self.name, value=_as_json)

    def rows(self) -> Iterator[Row]:
        context = SinkContext("", "", {"bootstrap.servers": self.site.kafka}, "", None)
        for value in committed_values(context, self.name, waits=False):
            yield msgspec.json.decode(value or b"", type=tuple[str, int])


class Foreach(Store):
    """The example's SQLite."""

    needs_spark = False

    @property
    def path(self) -> Path:
        return self.site.folder / f"{self.table}.db"

    def sink(self) -> TransactionalSink[Any]:
        return TransactionalForeachSink(SqliteOrders(self.path), schema=Order, name=self.table)

    def row(self, place: str, copy: int) -> object:
        return Order(number=copy, customer=place)

    def rows(self) -> list[Row]:
        with closing(sqlite3.connect(self.path)) as database:
            tables = "SELECT count(*) FROM sqlite_master WHERE name = 'orders'"
            if database.execute(tables).fetchone() == (0,):
                return []
            return list(database.execute("SELECT customer, number FROM orders"))


STORES: Mapping[str, type[Store]] = {
    "delta": Delta,
    "upserts": Upserts,
    "iceberg": Iceberg,
    "sql": Sql,
    "manifest": Manifest,
    "topic": Topic,
    "foreach": Foreach,
}


def _least_wrong(
    there: Mapping[tuple[str, int], str], table: str, places: list[Place], least: int
) -> set[tuple[str, int]]:
    """The keys of a partition that are wrong, at the length at which the fewest are."""
    lengths = _wrong(there, table, places)
    return min((set(wrong) for length, wrong in lengths if length >= least), key=len)


def _wrong(
    there: Mapping[tuple[str, int], str], table: str, places: list[Place]
) -> Iterator[tuple[int, set[tuple[str, int]]]]:
    """The keys that differ from what so many records of a partition make, for each length."""
    made: dict[tuple[str, int], str] = {}
    wrong = set(there)
    yield 0, wrong
    for place in places:
        for row, copy in wanted.rows(table, [place]):
            key = wanted.slot_of(row), copy
            if wanted.is_gone(place[1]):
                made.pop(key, None)
            else:
                made[key] = row
            (wrong.discard if there.get(key) == made.get(key) else wrong.add)(key)
        yield place[1] + 1, wrong


def _as_json(row: Copy) -> bytes:
    if row.copy > _LARGEST:
        raise ValueError(f"{row.copy} is no 64-bit integer")
    return msgspec.json.encode((row.place, row.copy))


def _cells(table: pa.Table, *names: str) -> Iterator[Any]:
    if not table.num_rows:  # perhaps there is no table yet, and no such columns
        return iter(())
    return zip(*(table[name].to_pylist() for name in names), strict=True)
