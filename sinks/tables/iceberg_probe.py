"""Whether a catalogue grants what an Iceberg table needs."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from sinks.tables.iceberg_history import check_in_order
from topology.errors import SinkFailed

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_PROPERTY = "headrace.checked-at"
_SCHEMA = pa.schema([("probe", pa.int64())])


def probe_catalogue(catalog: "Catalog", name: tuple[str, ...], table: "Table | None") -> str:
    """Use the rights that a table needs, where that harms least.

    A table that is there was loaded; a property of its own is committed to it. Else a table of
    another name is made in the namespace, loaded, committed to and dropped with its files; so is
    the namespace if it is missing, too. Returns what was done. Raises SinkFailed.
    """
    spelled, space = ".".join(name), ".".join(name[:-1])
    if table is not None:
        with _doing(f"commit to {spelled}"):
            _commit(table)
        return f"load and commit to {spelled}"
    with _doing(f"look for namespace {space}"):
        is_new = not catalog.namespace_exists(name[:-1])
    if is_new:
        with _doing(f"create namespace {space}"):
            catalog.create_namespace(name[:-1])
        with _then(f"drop namespace {space}", lambda: catalog.drop_namespace(name[:-1])):
            _probe_table(catalog, name[:-1])
    else:
        _probe_table(catalog, name[:-1])
    return f"create, load, commit to and drop a table in {space}"


def _probe_table(catalog: "Catalog", namespace: tuple[str, ...]) -> None:
    from sinks.tables.iceberg_io import CatalogStorage  # noqa: PLC0415 - imports pyiceberg

    name = (*namespace, f"headrace_check_{uuid.uuid4().hex}")
    spelled = ".".join(name)
    with _doing(f"create {spelled}"):
        made = catalog.create_table(name, _SCHEMA)
    with _then(f"drop {spelled}", lambda: catalog.purge_table(name)):
        with _doing(f"load {spelled}"):
            table = catalog.load_table(name)
        with _doing(f"commit to {spelled}"):
            _commit(table)
    files, folder = CatalogStorage("", properties=made.io.properties).filesystem(made.location())
    with suppress(OSError):  # the catalogue may have removed it
        files.delete_dir(folder)


def _commit(table: "Table") -> None:
    check_in_order(table)
    with table.transaction() as change:
        change.set_properties({_PROPERTY: datetime.now(UTC).isoformat(timespec="seconds")})


@contextmanager
def _then(what: str, undo: Callable[[], object]) -> Iterator[None]:
    """Undo something at the end. What was raised before is the reason that counts."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            undo()
        raise
    with _doing(what):
        undo()


@contextmanager
def _doing(what: str) -> Iterator[None]:
    try:
        yield
    except SinkFailed:
        raise
    except Exception as error:
        raise SinkFailed(f"cannot {what}: {type(error).__name__}: {error}") from error
