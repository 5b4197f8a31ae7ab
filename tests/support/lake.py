"""A table of each kind on any storage, its sinks, and its rows, which nothing of ours reads."""

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from headrace.sinks import DeltaSink, IcebergSink, Sink
from headrace.state import DeltaState, State, count
from sinks.storage import Storage
from tests.acceptance import evidence, table_files
from tests.support.batches import LINE, SCHEMA, group
from tests.support.near_a_store import StoreProxy
from tests.support.seaweed import EmbeddedSeaweed
from topology.sink import Committed, Fence, SinkContext, Staged

NAME = "orders"
CATALOG = "lake"


def _state() -> Sink[Any]:
    state = State(NAME, key={"number": int}, into=DeltaState(NAME), layout="opaque")
    return state.sink({"n": count()})


SINKS: Mapping[str, Callable[[], Sink[Any]]] = {
    "delta": lambda: DeltaSink(NAME, schema=SCHEMA),
    "parts": lambda: DeltaSink(NAME, schema=SCHEMA, partition_by=["place"]),
    "upserts": lambda: DeltaSink(NAME, schema=SCHEMA, key=["number"]),
    "state": _state,
    "iceberg": lambda: IcebergSink(NAME, schema=SCHEMA, catalog=CATALOG),
}


@dataclass(frozen=True)
class Lake:
    """One table. `direct` is the same storage, by the way that its readers take.

    An Iceberg table's catalogue is the storage's own; a state has a row for each time that a
    number was counted.
    """

    kind: str
    storage: Storage
    direct: Storage

    def sink(self) -> Sink[Any]:
        sink = SINKS[self.kind]()
        sink.open(SinkContext("p", "s", {}, self.storage, None, exactly_once=True))
        return sink

    def numbers(self) -> Counter[int]:
        rows = self._rows()
        if not rows.num_rows:
            return Counter()
        numbers = rows["number"].to_pylist()
        if self.kind != "state":
            return Counter(numbers)
        times = rows["n"].to_pylist()
        return Counter(
            it for number, n in zip(numbers, times, strict=True) for it in repeat(number, n)
        )

    def _rows(self) -> pa.Table:
        files, root = self.direct.filesystem(self.direct.uri(NAME))
        if self.kind != "iceberg":
            return evidence.read_table(root, files)
        given = self.direct.catalogs[CATALOG]
        if given["type"] == "sql":
            file = Path(given["uri"].removeprefix("sqlite:///"))
            return table_files.read_iceberg(table_files.metadata_of(file, NAME), files)
        catalog = load_catalog(CATALOG, **given)
        try:
            location = catalog.load_table(("default", NAME)).metadata_location
        finally:
            catalog.close()
        return table_files.read_iceberg(location, files)


def in_sqlite(storage: Storage, folder: Path) -> Storage:
    """The same, with an Iceberg catalogue in a file."""
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/iceberg.db"}
    return replace(storage, catalogs={CATALOG: catalog})


def behind_proxies(
    kind: str, seaweed: EmbeddedSeaweed, folder: Path, stack: ExitStack
) -> tuple[Lake, list[StoreProxy]]:
    """A table whose sinks ask SeaweedFS by a proxy, and a REST catalogue by another one."""
    store = stack.enter_context(StoreProxy(seaweed.address).running())
    if kind != "iceberg-rest":
        direct = in_sqlite(seaweed.storage(folder.name), folder)
        return Lake(kind, replace(direct, endpoint=store.url), direct), [store]
    bucket = f"t{uuid.uuid4().hex[:12]}"
    given = seaweed.catalogue(bucket)
    direct = replace(seaweed.storage(), warehouse=f"s3://{bucket}", catalogs={CATALOG: given})
    address = seaweed.catalogue_url.removeprefix("http://")
    catalogue = stack.enter_context(StoreProxy(address).running())
    given = given | {"uri": catalogue.url, "s3.endpoint": store.url}
    storage = replace(direct, endpoint=store.url, catalogs={CATALOG: given})
    return Lake("iceberg", storage, direct), [store, catalogue]


@dataclass
class Owner:
    """The owner of a line: fences, and commits transactions of two rows each, one by one.

    Another line's numbers are apart by `base`.
    """

    lake: Lake
    epoch: int = 1
    line: str = LINE
    base: int = 0

    def __post_init__(self) -> None:
        self.sink = self.lake.sink()
        self.txid = 0

    def fence(self) -> int:
        """Take the line; the last txid that is committed."""
        [found] = self.sink.fence([Fence(self.line, self.epoch)])
        assert found == Committed(self.line, self.epoch, found.txid)
        self.txid = found.txid
        return self.txid

    def stage(self) -> Staged:
        txid = self.txid + 1
        numbers = numbers_of(txid, self.base)
        return self.sink.stage(group(txid, *numbers, epoch=self.epoch, line=self.line))

    def commit(self, staged: Staged | None = None) -> None:
        self.sink.commit(self.stage() if staged is None else staged)
        self.txid += 1


def numbers_of(txid: int, base: int = 0) -> tuple[int, int]:
    return base + 10 * txid, base + 10 * txid + 1


def rows_to(txid: int, base: int = 0) -> Counter[int]:
    """What is there when transactions up to this one are, once each."""
    return Counter(number for each in range(1, txid + 1) for number in numbers_of(each, base))
