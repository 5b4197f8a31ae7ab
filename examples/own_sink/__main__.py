"""Try it: what a crash and a takeover do to the file, without Kafka.

python -m examples.own_sink
"""

import sqlite3
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.own_sink.sink import TABLES, Order, SqliteOrders
from headrace import SinkFenced
from headrace.sinks import Batch, Fence, Share

LINE = "orders[0]"


def main() -> int:
    """Write, write again, take over, and print what is in the file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "orders.db"
        with sqlite3.connect(path) as database:
            database.executescript(TABLES)
        first, second = SqliteOrders(path), SqliteOrders(path)
        first.fence([Fence(LINE, epoch=1)])
        for _ in range(2):  # the second time as after a crash, when nobody knew of the first
            first.commit(first.stage(batch(txid=1, epoch=1)))
        second.fence([Fence(LINE, epoch=2)])
        try:
            first.commit(first.stage(batch(txid=2, epoch=1)))
        except SinkFenced as error:
            print(f"refused: {error}")
        second.commit(second.stage(batch(txid=2, epoch=2)))
        with sqlite3.connect(path) as database:
            print("orders", [number for number, _ in database.execute("SELECT * FROM orders")])
            print("lines", database.execute("SELECT * FROM lines").fetchall())
    return 0


def batch(txid: int, epoch: int) -> Batch:
    """A transaction of one order."""
    share = Share(LINE, epoch, txid, 1, first=txid, end=txid + 1, digest="", num_rows=1)
    return Batch(txid, [[Order(number=txid, customer="c")]], 1, (share,))


if __name__ == "__main__":
    sys.exit(main())
