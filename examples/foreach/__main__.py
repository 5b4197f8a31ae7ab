"""Try it: what a crash and a takeover do to the file, without Kafka.

python -m examples.foreach
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.foreach.target import Order, SqliteOrders
from headrace import SinkFenced
from headrace.sinks import Fence, Group, Share, TransactionalForeachSink

LINE = "orders[0]"


def main() -> int:
    """Write, write again, take over, and print what is in the file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "orders.db"
        first = TransactionalForeachSink(SqliteOrders(path), schema=Order)
        second = TransactionalForeachSink(SqliteOrders(path), schema=Order)
        first.fence([Fence(LINE, epoch=1)])
        for _ in range(2):  # the second time as after a crash, when nobody knew of the first
            first.commit(first.stage(group(txid=1, epoch=1)))
        second.fence([Fence(LINE, epoch=2)])
        try:
            first.commit(first.stage(group(txid=2, epoch=1)))
        except SinkFenced as error:
            print(f"refused: {error}")
        second.commit(second.stage(group(txid=2, epoch=2)))
        print(f"orders {[row['number'] for row in SqliteOrders(path).rows()]}")
        print(f"{LINE} is at {SqliteOrders(path).last(LINE)}")
    return 0


def group(txid: int, epoch: int) -> Group:
    """A transaction of one order."""
    share = Share(LINE, epoch, txid, 1, first=txid, end=txid + 1, digest="", num_rows=1)
    return Group(txid, (share,), [[Order(number=txid, customer="c")]], 1)


if __name__ == "__main__":
    sys.exit(main())
