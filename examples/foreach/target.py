"""Orders in a file of SQLite, with the txids in the same file."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from headrace.sinks import Share

_TABLES = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER NOT NULL, customer TEXT);
CREATE TABLE IF NOT EXISTS lines (
    line TEXT PRIMARY KEY, epoch INTEGER NOT NULL, txid INTEGER NOT NULL
);
"""

_FENCE = """
INSERT INTO lines (line, epoch, txid) VALUES (?, ?, 0)
ON CONFLICT (line) DO UPDATE SET epoch = excluded.epoch WHERE epoch < excluded.epoch
"""

_MOVE = """
INSERT INTO lines (line, epoch, txid) VALUES (?, ?, ?)
ON CONFLICT (line) DO UPDATE SET epoch = excluded.epoch, txid = excluded.txid
WHERE epoch <= excluded.epoch AND txid < excluded.txid
"""


class Order(TypedDict):
    """A row."""

    number: int
    customer: str | None


class NotMoved(Exception):
    """A line has a higher epoch, or has this txid already."""


class SqliteOrders:
    """A target that fences: whatever it does is one transaction of SQLite's."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def last(self, line: str) -> tuple[int, int]:
        """Epoch and txid of a line."""
        with self._transaction() as database:
            query = "SELECT epoch, txid FROM lines WHERE line = ?"
            found: tuple[int, int] | None = database.execute(query, (line,)).fetchone()
        return found or (0, 0)

    def write(self, rows: Sequence[Order], shares: Sequence[Share]) -> None:
        """Move the lines and write the rows, or raise and do nothing."""
        with self._transaction() as database:
            for share in shares:
                moved = database.execute(_MOVE, (share.line, share.epoch, share.txid))
                if moved.rowcount != 1:
                    raise NotMoved(f"{share.line} to {share.epoch}, {share.txid}")
            values = [(row["number"], row["customer"]) for row in rows]
            database.executemany("INSERT INTO orders VALUES (?, ?)", values)

    def fence(self, line: str, epoch: int) -> None:
        """Raise a line's epoch."""
        with self._transaction() as database:
            database.execute(_FENCE, (line, epoch))

    def rows(self) -> list[Order]:
        """All orders, by number."""
        with self._transaction() as database:
            query = "SELECT number, customer FROM orders ORDER BY number"
            return [Order(number=n, customer=c) for n, c in database.execute(query)]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A connection that commits at the end, or rolls back. Writers wait for each other."""
        database = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        try:
            database.executescript(_TABLES)
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")
        finally:
            database.close()  # rolls back what was not committed
