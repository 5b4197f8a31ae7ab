"""What a sink of the crash tests is to both sides, and where.

The process under test uses `sink` and `row`, the test all else. What was written is read by nothing
of the product, so that it does not vouch for itself.
"""

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa

from examples.support.postgres_server import EmbeddedPostgres
from service.devservers.servers import EmbeddedKafka
from sinks.storage import Storage
from tests.acceptance import evidence, table_files, wanted
from tests.acceptance.evidence import Place
from tests.acceptance.wanted import Row
from topology.sink import Sink


@dataclass(frozen=True)
class Site:
    """Where the stores of one trial are."""

    name: str  # of the trial, which no other one has
    folder: Path
    kafka: str  # address
    database: str = ""  # PostgreSQL's URL, if it is needed
    server: EmbeddedPostgres | None = None  # for the test alone
    lake: Storage | None = None  # where tables are, as the test reads them; else a folder

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
    def storage(self) -> Storage:
        """Where tables are."""
        return self.lake or Storage(str(self.folder / "warehouse"))

    def delta_table(self, name: str) -> pa.Table:
        """The rows of a Delta table, by its log and its files."""
        files, root = self.storage.filesystem(self.storage.uri(name))
        return evidence.read_table(root, files)

    def iceberg_table(self, name: str) -> pa.Table:
        """The rows of an Iceberg table, by its metadata and its files."""
        files, _ = self.storage.filesystem(self.storage.uri(name))
        return table_files.read_iceberg(table_files.metadata_of(self.catalog, name), files)

    @property
    def catalog(self) -> Path:
        """The file of Iceberg's catalogue."""
        return self.folder / "iceberg.db" if self.lake else self.folder / "warehouse" / "iceberg.db"


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
            Counter(self.wanted_rows(done)) - rows,
            rows - Counter(self.wanted_rows(every)),
        )

    def wanted_rows(self, places: Iterable[Place]) -> Iterator[Row]:
        """What `rows` is to have of these records."""
        return wanted.rows(self.table, places)
