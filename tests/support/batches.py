from typing import Any

import pyarrow as pa

from topology.sink import Batch, Share, Sink

LINE = "orders[0]"
STRANGE = [" a/b=c:%41 ..", "x", "é ü", "50%", "", None, "a%2Fb", "#q?", "a+b"]  # as places
SCHEMA = pa.schema({"number": pa.int64(), "place": pa.string()})


def rows(*numbers: int, place: str | None = "x") -> list[dict[str, Any]]:
    return [{"number": number, "place": place} for number in numbers]


def write(sink: Sink[Any], given: list[dict[str, Any]], sequence: int = 1) -> None:
    sink.write(Batch(sequence, [given], len(given)))


def share(
    txid: int = 1, line: str = LINE, *, num_rows: int = 1, epoch: int = 1, attempt: int = 1
) -> Share:
    return Share(line, epoch, txid, attempt, 10 * txid, 10 * txid + 10, f"{txid:032x}", num_rows)


def group_of(txid: int, given: list[Any], **of_share: Any) -> Batch:
    count = len(given)
    return Batch(txid, [given], count, (share(txid, num_rows=count, **of_share),))


def group(txid: int, *numbers: int, **of_share: Any) -> Batch:
    return group_of(txid, rows(*numbers), **of_share)


def put(sink: Sink[Any], txid: int, *numbers: int, **of_share: Any) -> None:
    sink.commit(sink.stage(group(txid, *numbers, **of_share)))


def filled(table: Any, last: int = 1) -> Any:
    """A fenced sink of the table that has put each number in a transaction of its own."""
    sink = table.fenced()
    for txid in range(1, last + 1):
        put(sink, txid, txid)
    return sink
