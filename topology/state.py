"""State: values by key that outlive the run, and count each record once.

Trident's persistentAggregate is `Stream.aggregate`; its stateQuery is a look-up: a State is a
Reference.
"""

import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, get_args

import numpy as np
import pyarrow as pa

from topology.aggregates import Aggregate, Groups, Reducer
from topology.errors import AggregateFailed, InvalidTopology, ReferenceLoadFailed, expect
from topology.reference import KEY_TYPES, MAX_ROWS, KeyIndex, LoadedTable, Reference, key_column
from topology.schema import schema_of, schema_of_hints
from topology.sink import Kind, Sink, SinkContext


class StoredRows:
    """The rows of one load, one per key and line, and those committed since it began (`news`).

    The committing thread fills `news`, in the order of commits; one other thread at a time uses
    the rest.
    """

    def __init__(
        self, rows: pa.Table, news: deque[pa.Table], key: Sequence[str], row_key: Sequence[str]
    ) -> None:
        """`key` are the columns of a key, `row_key` those that identify a row."""
        self.news = news
        self._rows = rows
        self._key = key
        self._row_key = row_key

    def take_news(self) -> pa.Table | None:
        """Apply the news, if any; return all rows of their keys.

        Costs about 0.1 µs per stored row, twice that if a key has several columns, and up to
        1 µs per changed row.
        """
        told: list[pa.Table] = []
        while self.news:
            told.append(self.news.popleft())
        if not told:
            return None
        keys = pa.concat_tables(told).group_by([*self._key], use_threads=False).aggregate([])
        changed = KeyIndex(_arrays(keys, self._key)).of(_arrays(self._rows, self._key))
        now = _last([self._rows.filter(changed.is_valid()), *told], self._row_key)
        kept = self._rows.filter(changed.is_null())
        self._rows = pa.concat_tables([kept, now]).combine_chunks()
        return now


def _last(tables: Sequence[pa.Table], names: Sequence[str]) -> pa.Table:
    """Return the last row of each key. All tables at once: there may be many."""
    rows = pa.concat_tables(tables)
    keys = [str(number) for number in range(len(names))]
    numbered = pa.table([*_arrays(rows, names), np.arange(rows.num_rows)], [*keys, "row"])
    last = numbered.group_by(keys, use_threads=False).aggregate([("row", "max")])
    is_last = np.zeros(rows.num_rows, np.bool_)
    is_last[last["row_max"].to_numpy()] = True
    return rows.filter(pa.array(is_last))


def _arrays(table: pa.Table, names: Sequence[str]) -> list[Any]:
    return [table[name].combine_chunks() for name in names]


LINE = "_line"
TXID = "_txid"

_NAME = re.compile(r"[^/\\:\s]+")


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The stored form of a state: one row per key and line.

    A row has the key's columns, its line, its values, with "opaque" also the values before its
    last transaction, and that transaction's txid, or 0. Only values may be null.
    """

    state: str
    key: pa.Schema
    aggregates: Mapping[str, Aggregate]
    layout: Kind

    @property
    def schema(self) -> pa.Schema:
        kinds = self.aggregates.items()
        values = [pa.field(name, each.type) for name, each in kinds]
        if self.layout == "opaque":
            values += [pa.field(before_of(name), each.type) for name, each in kinds]
        return pa.schema([*self.row_schema, *values, pa.field(TXID, pa.int64(), nullable=False)])

    @property
    def row_key(self) -> tuple[str, ...]:
        return (*self.key.names, LINE)

    @property
    def row_schema(self) -> pa.Schema:
        return pa.schema([*self.key, pa.field(LINE, pa.string(), nullable=False)])

    @property
    def has_one_line(self) -> bool:
        """Whether each key's rows must be of one line, as its values cannot be merged."""
        return any(
            isinstance(each, Reducer) and each.merge is None for each in self.aggregates.values()
        )

    def over_lines(self, stored: pa.Table) -> pa.Table:
        """Return one row per key, its values merged. Raises AggregateFailed."""
        names = self.key.names
        keys = [stored[name] for name in names]
        first, groups = grouped(keys)
        columns: list[Any] = [key.take(first) for key in keys]
        for name, aggregate in self.aggregates.items():
            try:
                values = stored[name].combine_chunks()
                columns.append(aggregate.merged(values, groups))
            except AggregateFailed as error:
                raise AggregateFailed(f"state '{self.state}', '{name}': {error}") from error
        return pa.table(columns, names=[*names, *self.aggregates])


class StatePlace(Protocol):
    """A store of states (`headrace.state` has them)."""

    def sink(self, state: "State") -> Sink[Any]: ...

    def load(self, context: SinkContext, shape: Shape) -> pa.Table:
        """Return all stored rows. Any thread may call, whether or not it is open."""
        ...


class State(Reference):
    """Values by key, written by `Stream.aggregate`, and read as a Reference.

    `key` maps the key's fields to their types, or is a row type. Under exactly-once each record
    counts once; `layout` is Trident's: "transactional" stores a value with its last txid, for
    topologies with such transactions; "opaque" also with its previous value, for both kinds.

    After `topology.uses(state)` it maps each key to its values, or to the one named by `value`, as
    committed when it was loaded: before the first record and then every `refresh_seconds`. If the
    local engine both writes and reads the State, commits of this process show from the next turn
    of its loop on.
    """

    def __init__(
        self,
        name: str,
        *,
        key: Mapping[str, Any] | type[Any] | pa.Schema,
        into: StatePlace,
        layout: Kind = "transactional",
        value: str | None = None,
        refresh_seconds: float | None = None,
        max_rows: int = MAX_ROWS,
    ) -> None:
        """Raises InvalidTopology."""
        place = f"state '{name}'"
        if not _NAME.fullmatch(name):
            expected = "a name without spaces, '/', ':' and '\\'"
            raise InvalidTopology(f"state name: found {name!r}, expected {expected}")
        is_layout = layout in get_args(Kind)
        expect(is_layout, f"{place}, layout", layout, ", ".join(get_args(Kind)))
        fields = schema_of_hints(key, place) if isinstance(key, Mapping) else schema_of(key)
        fields = _checked_key(place, fields)
        super().__init__(
            name,
            key=fields.names,
            value=value,
            refresh_seconds=refresh_seconds,
            max_rows=max_rows,
            format="table",
        )
        self.fields = fields
        self.into = into
        self.layout: Kind = layout
        self._aggregates: dict[str, Aggregate] = {}
        self._follows = False
        self._telling = threading.Lock()
        self._told: list[deque[pa.Table]] = []  # by load, the one in place first
        self._loading: deque[pa.Table] | None = None  # the loading thread's

    @property
    def shape(self) -> Shape:
        """Raises InvalidTopology before its aggregates are declared."""
        if not self._aggregates:
            raise InvalidTopology(
                f"state '{self.name}' has no values. Use stream.aggregate(state, n=count()), or "
                "state.holds(n=count()) if another pipeline writes it"
            )
        return Shape(self.name, self.fields, dict(self._aggregates), self.layout)

    def holds(self, **aggregates: Aggregate) -> "State":
        """Declare values that another pipeline writes; return itself. Raises InvalidTopology."""
        _check_aggregates(f"state '{self.name}'", self.fields, aggregates)
        if self._aggregates:
            raise InvalidTopology(f"state '{self.name}' has values already, expected holds() once")
        self._aggregates = dict(aggregates)
        return self

    def sink(self, aggregates: Mapping[str, Aggregate]) -> Sink[Any]:
        """Return the sink for `Stream.aggregate`. Raises InvalidTopology.

        A factory, or a notebook's cell, may call again with the same aggregates.
        """
        place = f"state '{self.name}'"
        _check_aggregates(place, self.fields, aggregates)
        before, now = _kinds_of(self._aggregates), _kinds_of(aggregates)
        if before and now != before:
            found, expected = (", ".join(map("=".join, each.items())) for each in (now, before))
            raise InvalidTopology(
                f"{place}, aggregates: found {found}, expected {expected}, as it has them already. "
                "Make another State for another topology"
            )
        self._aggregates = dict(aggregates)
        return self.into.sink(self)

    def fetch(self, context: SinkContext, place: StatePlace | None = None) -> pa.Table:
        """Load the stored rows, for `read`, from another place in a test. One thread at a time."""
        place = place or self.into
        if not self._follows:
            return place.load(context, self.shape)
        news: deque[pa.Table] = deque()
        self._loading = news
        with self._telling:
            self._told.append(news)  # the load may or may not have commits from now on
        try:
            return place.load(context, self.shape)
        except BaseException:
            self._forget(news)
            raise

    def read(self, table: pa.Table) -> LoadedTable:
        """Make a load of stored rows, merged over their lines. Raises ReferenceLoadFailed."""
        news, self._loading = self._loading, None
        try:
            loaded = self._merged(table)
            if news is not None:
                shape = self.shape
                rows = table.select(shape.schema.names).cast(shape.schema)
                loaded.stored = StoredRows(rows, news, shape.key.names, shape.row_key)
        except BaseException:
            self._forget(news)
            raise
        return loaded

    def follow(self) -> None:
        """Show commits of this process, from the next load on. The owner thread calls."""
        self._follows = True

    def publish(self, rows: pa.Table) -> None:
        """Add the rows of a commit of this process. Any thread may call."""
        with self._telling:
            for news in self._told:
                news.append(rows)

    @property
    def has_news(self) -> bool:
        """Whether `catch_up` has anything to apply."""
        loaded = self.loaded
        return loaded is not None and loaded.stored is not None and bool(loaded.stored.news)

    def catch_up(self) -> None:
        """Apply commits since the load; the owner thread calls it between chunks.

        Raises ReferenceLoadFailed when there are more than `max_rows` keys: the rows stay as they
        were, and commits are ignored until the next load.
        """
        loaded = self.loaded
        rows = None if loaded is None or loaded.stored is None else loaded.stored.take_news()
        if loaded is None or rows is None:
            return
        whole = loaded.with_rows(self._merged(rows))
        try:
            self._check_rows(whole.num_rows)
        except ReferenceLoadFailed:
            loaded.stored = None
            with self._telling:
                self._told = self._told[1:]
            raise
        super().use(whole)

    def use(self, loaded: LoadedTable) -> None:
        """Replace the current load, with the commits since it began."""
        if loaded.stored is not None:
            news = loaded.stored.news
            with self._telling:  # of this load, and of later ones that still run
                found = [index for index, each in enumerate(self._told) if each is news]
                self._told = self._told[found[0] :] if found else [news]
        super().use(loaded)
        self.catch_up()

    def unload(self) -> None:
        """Unload, and ignore commits."""
        self._follows = False
        with self._telling:
            self._told = []
        super().unload()

    def _merged(self, table: pa.Table) -> LoadedTable:
        if LINE in table.column_names:
            try:
                table = self.shape.over_lines(table)
            except AggregateFailed as error:
                raise ReferenceLoadFailed(self.name, str(error)) from error
        return super().read(table)

    def _forget(self, news: "deque[pa.Table] | None") -> None:
        with self._telling:
            self._told = [each for each in self._told if each is not news]

    def __repr__(self) -> str:
        return f"State('{self.name}', key={self.key})"


def before_of(name: str) -> str:
    return f"_before_{name}"


def grouped(keys: Sequence[Any]) -> tuple["pa.Array[Any]", Groups]:
    """Return the first index of each key, and each row's key number, in that order."""
    names = [str(number) for number in range(len(keys))]
    numbers = pa.array(np.arange(len(keys[0])))
    table = pa.table([*keys, numbers], names=[*names, "row"])
    # With threads, the order of keys would differ from run to run.
    found = table.group_by(names, use_threads=False).aggregate([("row", "min"), ("row", "list")])
    rows: Any = found["row_list"].combine_chunks()
    groups = np.empty(len(numbers), np.int64)
    groups[rows.flatten().to_numpy()] = rows.value_parent_indices().to_numpy()
    return found["row_min"].combine_chunks(), groups


def _checked_key(place: str, fields: pa.Schema) -> pa.Schema:
    """Return the key's columns in their stored types. Raises InvalidTopology."""
    expect(fields.names, f"{place}, key", fields.names, "one or more columns")
    _check_names(place, fields.names)
    checked = []
    for field in fields:
        found = key_column(pa.array([], field.type))
        if found is None:
            message = f"{place}, key '{field.name}': found {field.type}, expected {KEY_TYPES}"
            raise InvalidTopology(message)
        kind = found.type
        if isinstance(kind, pa.TimestampType):
            kind = pa.timestamp("us", kind.tz)  # the finest that all stores have
        checked.append(pa.field(field.name, kind, nullable=False))
    return pa.schema(checked)


def _check_aggregates(place: str, fields: pa.Schema, aggregates: Mapping[str, Any]) -> None:
    expect(aggregates, f"{place}, aggregates", dict(aggregates), "one or more, such as n=count()")
    _check_names(place, [*fields.names, *aggregates])
    known = "count(), total(), least(), most(), combiner() or reducer()"
    for name, each in aggregates.items():
        expect(isinstance(each, Aggregate), f"{place}, {name}", each, known)


def _kinds_of(aggregates: Mapping[str, Aggregate]) -> dict[str, str]:
    """Return the kind, field and type of each, without its functions: a cell makes them anew."""
    kinds = {}
    for name, each in aggregates.items():
        field = getattr(each, "field", "")
        kind = "count" if field is None else getattr(each, "which", type(each).__name__.lower())
        kinds[name] = f"{kind}({field!r}, {each.type})" if field else f"{kind}({each.type})"
    return kinds


def _check_names(place: str, names: Iterable[str]) -> None:
    """Raise InvalidTopology for reserved names, and for those that a database may take as equal."""
    seen: set[str] = set()
    for name in names:
        is_new = not name.startswith("_") and name.lower() not in seen
        expected = "each name once, in upper or lower case, and none that begins with '_'"
        expect(is_new, f"{place}, column", name, expected)
        seen.add(name.lower())
