"""`headrace offsets show`: where each partition stands, from outside the process."""

import http.client
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from partition.records import Partition
from service.cli.topics import answer, partitions_of
from service.config import Config, HttpConfig
from service.parts import wire
from topology.topology import Topology

_FRONTIER = "headrace_partition_frontier_offset{"
_SCRAPE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """One partition. Offsets are the next to read; None where there is none to know."""

    partition: str
    committed: int | None  # None: nothing is stored
    epoch: int | None  # how often the partition has been claimed
    frontier: int | None  # None: no running service answered
    log_start: int
    log_end: int
    committed_txid: int | None = None  # in every sink; None: nothing of it is exactly-once
    open_txids: tuple[int, ...] = ()  # recorded, and not known to be in every sink

    @property
    def lag(self) -> int:
        """Offsets between what is committed, or else the log's start, and the log's end."""
        return self.log_end - (self.log_start if self.committed is None else self.committed)

    def as_json(self) -> dict[str, Any]:
        """The row as JSON takes it."""
        facts = asdict(self)
        del facts["partition"]
        return facts | {"lag": self.lag}


def read_offsets(topology: Topology, config: Config) -> list[OffsetRow]:
    """Read ZooKeeper and Kafka; the frontiers come from the running service, if it serves HTTP."""
    parts = wire(topology, config)
    frontiers = live_frontiers(config.http)
    rows: list[OffsetRow] = []
    try:
        parts.catalogue.open()
        parts.store.open()
        partitions = partitions_of(topology, parts.catalogue)
        # All at once: the catalogue asks for them together.
        asked = [(partition, parts.catalogue.log(partition)) for partition in partitions]
        for partition, log in asked:
            found = answer(log)
            stored = parts.store.load(partition)
            transactions = stored.transactions if stored is not None else None
            rows.append(
                OffsetRow(
                    partition=str(partition),
                    committed=stored.offset if stored is not None else None,
                    epoch=stored.epoch if stored is not None else None,
                    frontier=frontiers.get(partition),
                    log_start=found.start,
                    log_end=found.end,
                    committed_txid=transactions.committed if transactions else None,
                    open_txids=tuple(each.txid for each in transactions.open)
                    if transactions
                    else (),
                )
            )
    finally:
        parts.catalogue.close()
        parts.store.close()
    return rows


def live_frontiers(http_config: HttpConfig) -> dict[Partition, int]:
    """The frontiers that a running service shows; empty when none answers in 2 seconds."""
    if not http_config.port:
        return {}
    connection = http.client.HTTPConnection(
        http_config.host, http_config.port, timeout=_SCRAPE_SECONDS
    )
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode() if answer.status == HTTPStatus.OK else ""
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return {}  # no service, or another one
    finally:
        connection.close()
    frontiers: dict[Partition, int] = {}
    for line in text.splitlines():
        if line.startswith(_FRONTIER):
            labels, value = line.removeprefix(_FRONTIER).rsplit("} ", 1)
            named = dict(label.split("=", 1) for label in labels.split(","))
            topic, number = named["topic"].strip('"'), int(named["partition"].strip('"'))
            frontiers[Partition(topic, number)] = int(float(value))
    return frontiers


def show_offsets(console: Console, rows: list[OffsetRow]) -> None:
    """Print the rows as a table; transactions only if a partition has any."""
    names = ["committed", "frontier", "log start", "log end", "lag", "epoch"]
    transactional = any(row.committed_txid is not None for row in rows)
    table = Table()
    table.add_column("partition")
    for name in [*names, "txid", "open"] if transactional else names:
        table.add_column(name, justify="right")
    for row in rows:
        numbers = [row.committed, row.frontier, row.log_start, row.log_end, row.lag, row.epoch]
        if transactional:
            numbers += [row.committed_txid, len(row.open_txids)]
        cells = ("-" if number is None else f"{number:,}" for number in numbers)
        table.add_row(escape(row.partition), *cells)
    console.print(table)
