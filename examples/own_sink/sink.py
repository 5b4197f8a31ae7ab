"""Orders in a file of SQLite, with the txids in the same file: a sink of your own, exactly once."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from headrace.sinks import (
    BOTH_KINDS,
    Batch,
    Committed,
    Fence,
    Sink,
    SinkContext,
    Staged,
    check_fences,
    fitting_rows,
    is_to_commit,
)

TABLES = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER NOT NULL, customer TEXT);
CREATE TABLE IF NOT EXISTS lines (line TEXT PRIMARY KEY, epoch INTEGER, txid INTEGER);
"""


class Order(TypedDict):
    """A row."""

    number: int
    customer: str | None


class SqliteOrders(Sink[Order]):
    """Writes orders, and how far each line is, in one transaction of SQLite's."""

    name = "sqlite"
    kinds = BOTH_KINDS

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - the path is all it needs
        """Make the tables."""
        with sqlite3.connect(self._path) as database:
            database.executescript(TABLES)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs, and say what is committed."""
        with sqlite3.connect(self._path) as database:  # commits at its end, or rolls back
            database.execute("BEGIN IMMEDIATE")  # nobody else writes from here on
            found = _found(database, [fence.line for fence in fences])
            check_fences(fences, found)
            raised = [
                each._replace(epoch=own.epoch) for own, each in zip(fences, found, strict=True)
            ]
            database.executemany("REPLACE INTO lines VALUES (?, ?, ?)", raised)
        return raised

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Say what is committed."""
        with sqlite3.connect(self._path) as database:
            return _found(database, lines)

    def stage(self, batch: Batch) -> Staged:
        """Set rows apart that do not fit: their records become dead letters."""
        rows, rejected = fitting_rows(batch.pieces, Order)
        return Staged(batch.shares, len(rows), (rows,), rejected)

    def commit(self, staged: Staged) -> None:
        """Write the rows and the txids, unless they are there."""
        with sqlite3.connect(self._path) as database:
            database.execute("BEGIN IMMEDIATE")
            if is_to_commit(staged.shares, _found(database, [each.line for each in staged.shares])):
                database.executemany(
                    "INSERT INTO orders VALUES (:number, :customer)", *staged.parts
                )
                lines = [(each.line, each.epoch, each.txid) for each in staged.shares]
                database.executemany("REPLACE INTO lines VALUES (?, ?, ?)", lines)


def _found(database: sqlite3.Connection, lines: Sequence[str]) -> list[Committed]:
    known = {line: (epoch, txid) for line, epoch, txid in database.execute("SELECT * FROM lines")}
    return [Committed(line, *known.get(line, (0, 0))) for line in lines]
