"""Every exactly-once sink, as `crashing.py` writes to it and as the crash tests read it.

The process under test uses `sink` and `row`, the test all else. What was written is read by nothing
of the product, so that it does not vouch for itself.
"""

import os
import sqlite3
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
import psycopg
import pyarrow as pa

from examples.own_sink.sink import Order, SqliteOrders
from examples.support.postgres_server import EmbeddedPostgres
from headrace.sinks import DeltaSink, IcebergSink, KafkaTopicSink, PostgresSink, Sink, SparkSink
from headrace.state import DeltaState, PostgresState, State, StateStore, count
from service.devservers.servers import EmbeddedKafka
from sinks.storage import Storage
from tests.acceptance import evidence, table_files, wanted
from tests.acceptance.evidence import Place
from tests.acceptance.wanted import Row
from tests.support.committed_messages import committed_values
from tests.support.postgres_table import rows_of

_PARTITIONS = 2  # of a topic that is written
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Site:
    name: str  # of the trial, which no other one has
    folder: Path
    kafka: str  # address
    database: str = ""  # PostgreSQL's URL, if it is needed
    server: EmbeddedPostgres | None = None  # for the test alone
    lake: Storage | None = None  # where tables are, as the test reads them; else a folder

    @classmethod
    def here(cls) -> Self:
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
    def storage(self) -> Storage:
        return self.lake or Storage(str(self.folder / "warehouse"))

    def delta_table(self, name: str) -> pa.Table:
        files, root = self.storage.filesystem(self.storage.uri(name))
        return evidence.read_table(root, files)

    def iceberg_table(self, name: str) -> pa.Table:
        files, _ = self.storage.filesystem(self.storage.uri(name))
        return table_files.read_iceberg(table_files.metadata_of(self.catalog, name), files)

    @property
    def catalog(self) -> Path:
        return self.folder / "iceberg.db" if self.lake else self.folder / "warehouse" / "iceberg.db"


@dataclass(frozen=True)
class Found:
    """How a table differs from what it must be: what is not there, and what is too much."""

    missing: Counter[Any]
    surplus: Counter[Any]


@dataclass
class Copy:
    place: str
    copy: int


class Store(ABC):
    """One table, topic or file that only one trial uses."""

    needs_database: ClassVar[bool] = False
    # False: a row that is written twice is there once, or the sink stands behind no other one.
    has_control: ClassVar[bool] = True

    def __init__(self, site: Site, table: str) -> None:
        """`table` is one of those of wanted.py."""
        self.site = site
        self.table = table

    def prepare(self, kafka: EmbeddedKafka) -> None:
        """Make what must be there before the first process starts."""
        del kafka  # most make it themselves

    @abstractmethod
    def sink(self) -> Sink[Any]: ...

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
            Counter(self.wanted_rows(done)) - rows, rows - Counter(self.wanted_rows(every))
        )

    def wanted_rows(self, places: Iterable[Place]) -> Iterator[Row]:
        return wanted.rows(self.table, places)


class Delta(Store):
    def sink(self) -> Sink[Any]:
        return DeltaSink(self.table, schema=Copy)

    def rows(self) -> Iterable[Row]:
        return _cells(self.site.delta_table(self.table), "place", "copy")


class BySpark(Delta):
    has_control = False

    def sink(self) -> Sink[Any]:
        return SparkSink(self.table, format="delta", schema=Copy)


@dataclass
class Slot:
    slot: str
    copy: int
    place: str
    gone: bool


class Upserts(Store):
    """A Delta table with keys: it has the last row of each, unless that deletes it."""

    has_control = False

    def sink(self) -> Sink[Any]:
        return DeltaSink(self.table, schema=Slot, key=["slot", "copy"], deleted="gone")

    def row(self, place: str, copy: int) -> object:
        return Slot(wanted.slot_of(place), copy, place, wanted.is_gone(int(place.split(":")[1])))

    def rows(self) -> Iterable[Row]:
        return _cells(self.site.delta_table(self.table), "place", "copy")

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
            missing.update(self._least_wrong(theirs, of, stored.get(number, 0)))
        return Found(missing, counts - Counter(set(counts)))

    def _least_wrong(
        self, there: Mapping[tuple[str, int], str], places: list[Place], least: int
    ) -> set[tuple[str, int]]:
        """The keys of a partition that are wrong, at the length at which the fewest are."""
        lengths = self._wrong(there, places)
        return min((set(wrong) for length, wrong in lengths if length >= least), key=len)

    def _wrong(
        self, there: Mapping[tuple[str, int], str], places: list[Place]
    ) -> Iterator[tuple[int, set[tuple[str, int]]]]:
        """The keys that differ from what so many records of a partition make, for each length."""
        made: dict[tuple[str, int], str] = {}
        wrong = set(there)
        yield 0, wrong
        for place in places:
            for row, copy in self.wanted_rows([place]):
                key = wanted.slot_of(row), copy
                if wanted.is_gone(place[1]):
                    made.pop(key, None)
                else:
                    made[key] = row
                (wrong.discard if there.get(key) == made.get(key) else wrong.add)(key)
            yield place[1] + 1, wrong


class Iceberg(Store):
    def sink(self) -> Sink[Any]:
        return IcebergSink(self.table, schema=Copy)

    def rows(self) -> Iterable[Row]:
        return _cells(self.site.iceberg_table(self.table), "place", "copy")


class Postgres(Store):
    needs_database = True

    def sink(self) -> Sink[Any]:
        return PostgresSink(self.site.database, _in_database(self), schema=Copy)

    def rows(self) -> list[Row]:
        return [(row["place"], row["copy"]) for row in _rows_in_database(self, "place, copy")]


class Topic(Store):
    @property
    def name(self) -> str:
        return f"{self.site.name}.{self.table}"

    def prepare(self, kafka: EmbeddedKafka) -> None:
        kafka.create_topic(self.name, _PARTITIONS)

    def sink(self) -> Sink[Any]:
        return KafkaTopicSink(self.name, value=_as_json)

    def rows(self) -> Iterator[Row]:
        for value in committed_values(self.site.kafka, self.name, waits=False):
            yield msgspec.json.decode(value or b"", type=tuple[str, int])


class Own(Store):
    """The example's SQLite."""

    @property
    def path(self) -> Path:
        return self.site.folder / f"{self.table}.db"

    def sink(self) -> Sink[Any]:
        sink = SqliteOrders(self.path)
        sink.name = self.table
        return sink

    def row(self, place: str, copy: int) -> object:
        return Order(number=copy, customer=place)

    def rows(self) -> list[Row]:
        with closing(sqlite3.connect(self.path)) as database:
            tables = "SELECT count(*) FROM sqlite_master WHERE name = 'orders'"
            if database.execute(tables).fetchone() == (0,):
                return []
            return list(database.execute("SELECT customer, number FROM orders"))


@dataclass
class Counted:
    slot: str
    copy: int


class Counts(Store):
    """A state: how many rows there are of each slot and copy, over all lines."""

    def sink(self) -> Sink[Any]:
        key = {"slot": str, "copy": int}
        # Laid out for both kinds of transactions.
        counts = State(self.table, key=key, into=self.place(), layout="opaque")
        return counts.sink({"n": count()})

    @abstractmethod
    def place(self) -> StateStore: ...

    @abstractmethod
    def counts(self) -> Iterable[tuple[str, int, int]]:
        """Slots, copies and counts."""

    def row(self, place: str, copy: int) -> object:
        return Counted(wanted.slot_of(place), copy)

    def rows(self) -> Iterator[Row]:
        """As many of each slot and copy as were counted."""
        for slot, copy, n in self.counts():
            yield from repeat((slot, copy), n)

    def wanted_rows(self, places: Iterable[Place]) -> Iterator[Row]:
        for place, copy in super().wanted_rows(places):
            yield wanted.slot_of(place), copy


class CountsInDelta(Counts):
    def place(self) -> StateStore:
        return DeltaState(self.table)

    def counts(self) -> Iterable[tuple[str, int, int]]:
        return _cells(self.site.delta_table(self.table), "slot", "copy", "n")


class CountsInPostgres(Counts):
    needs_database = True

    def place(self) -> StateStore:
        return PostgresState(self.site.database, _in_database(self))

    def counts(self) -> list[tuple[str, int, int]]:
        found = _rows_in_database(self, "slot, copy, n")
        return [(row["slot"], row["copy"], row["n"]) for row in found]


STORES: Mapping[str, type[Store]] = {
    "delta": Delta,
    "spark": BySpark,
    "upserts": Upserts,
    "iceberg": Iceberg,
    "postgres": Postgres,
    "topic": Topic,
    "own": Own,
    "delta-state": CountsInDelta,
    "postgres-state": CountsInPostgres,
}


def _as_json(row: Copy) -> bytes:
    if row.copy > _LARGEST:
        raise ValueError(f"{row.copy} is no 64-bit integer")
    return msgspec.json.encode((row.place, row.copy))


def _in_database(store: Store) -> str:
    return f"{store.site.name}-{store.table}"


def _rows_in_database(store: Store, columns: str) -> list[dict[str, Any]]:
    query = f'SELECT {columns} FROM "{_in_database(store)}"'  # noqa: S608 - the test's own names
    try:
        return rows_of(store.site.server, query)
    except psycopg.errors.UndefinedTable:  # the sink makes it
        return []


def _cells(table: pa.Table, *names: str) -> Iterator[Any]:
    if not table.num_rows:  # perhaps there is no table yet, and no such columns
        return iter(())
    return zip(*(table[name].to_pylist() for name in names), strict=True)
