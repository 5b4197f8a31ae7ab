"""Aggregates of a state: counts, sums, extremes, and those by functions.

Trident's CombinerAggregator is `combiner`, its ReducerAggregator `reducer`.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topology.errors import AggregateFailed, expect
from topology.schema import schema_of_hints, with_nulls
from topology.values import converted

Column: TypeAlias = "pa.Array[Any]"
Groups: TypeAlias = npt.NDArray[np.int64]

_MOST_INT = 2**63 - 1
_WIDE = 76  # digits of the widest decimal


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate(ABC):
    """One value per key, of one type. Stateless; any thread may call."""

    type: pa.DataType

    @abstractmethod
    def merged(self, values: Column, groups: Groups) -> Column:
        """Merge the values of each group into one, ignoring nulls, in the order of groups.

        Groups are numbered from 0 without gaps. Raises AggregateFailed.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Sum(Aggregate):
    """The number of rows (no field), or the sum of a field. Never null."""

    field: str | None = None

    def merged(self, values: Column, groups: Groups) -> Column:
        try:
            summed: Any = _by_group(self._wide(values), groups, "sum").cast(self.type)
        except pa.ArrowInvalid as error:
            raise AggregateFailed(f"a sum overflows {self.type}: {error}") from error
        filled: Column = summed.fill_null(pa.scalar(0, self.type))
        return filled

    def _wide(self, values: Column) -> Column:
        """Cast to a type that Arrow's sum, which wraps silently, cannot overflow."""
        if isinstance(self.type, pa.Decimal128Type):
            return values.cast(pa.decimal256(_WIDE, self.type.scale))
        if pa.types.is_integer(self.type) and len(values):
            import pyarrow.compute as pc  # noqa: PLC0415 - costs 0.05 s

            low, high = pc.min(values).as_py() or 0, pc.max(values).as_py() or 0
            if max(-low, high) * len(values) > _MOST_INT:
                return values.cast(pa.decimal128(38, 0))
        return values


@dataclass(frozen=True, slots=True, eq=False)
class Extreme(Aggregate):
    """The least or the greatest value of a field, at first null."""

    field: str
    which: Literal["min", "max"]

    def merged(self, values: Column, groups: Groups) -> Column:
        return _by_group(values, groups, self.which)


@dataclass(frozen=True, slots=True, eq=False)
class Combiner(Aggregate):
    """A value of each row, merged two at a time in any grouping."""

    zero: Any
    one: Callable[[Any], Any]
    merge: Callable[[Any, Any], Any]

    def merged(self, values: Column, groups: Groups) -> Column:
        return _folded(self.type, self.merge, self.zero, values, groups)


@dataclass(frozen=True, slots=True, eq=False)
class Reducer(Aggregate):
    """A value that each row changes, one after the other."""

    zero: Any
    step: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any] | None = None

    def merged(self, values: Column, groups: Groups) -> Column:
        return _folded(self.type, self._merged, None, values, groups)

    def reduced(self, before: Column, rows: Iterable[Sequence[Any]]) -> Column:
        """Change each value by its rows, in order; null starts at zero. Raises AggregateFailed."""
        done: list[Any] = []
        for value, its_rows in zip(_values(before), rows, strict=True):
            reduced = copy.deepcopy(self.zero) if value is None else value
            for row in its_rows:
                reduced = _called(self.step, reduced, row)
            done.append(reduced)
        return as_column(done, self.type)

    def _merged(self, one: Any, other: Any) -> Any:
        if one is None:
            return other
        if self.merge is None:
            raise AggregateFailed(
                "a key has rows in several partitions, and the reducer has no merge=. Add it, or "
                "keep each key in one partition"
            )
        return self.merge(one, other)


def count() -> Aggregate:
    """Count the rows."""
    return Sum(pa.int64())


def total(field: str, *, type: Any = int) -> Aggregate:  # noqa: A002 - as in a schema
    """Sum a field; `type` is int, float or a decimal. None adds nothing. Raises InvalidTopology."""
    place = f"total('{field}')"
    kind = type_of(type, place)
    is_number = kind in (pa.int64(), pa.float64()) or isinstance(kind, pa.Decimal128Type)
    expect(is_number, f"{place}, type", type, "int, float or Decimal")
    return Sum(kind, field)


def least(field: str, *, type: Any = int) -> Aggregate:  # noqa: A002 - as in a schema
    """Keep the least value of a field, or None if all are None. Raises InvalidTopology."""
    return _extreme(field, type, "min")


def most(field: str, *, type: Any = int) -> Aggregate:  # noqa: A002 - as in a schema
    """Keep the greatest value of a field, or None if all are None. Raises InvalidTopology."""
    return _extreme(field, type, "max")


def combiner(
    zero: Any,
    one: Callable[[Any], Any],
    merge: Callable[[Any, Any], Any],
    *,
    type: Any,  # noqa: A002 - as in a schema
) -> Aggregate:
    """Make a value of each row by `one`, and merge values in any grouping by `merge`.

    `zero` is the neutral element. `type` is the value's, as in a row type, and not None. A row is
    rejected if `one` raises or returns another type; the run ends if `merge`, which any thread
    may call, raises or returns another type. Raises InvalidTopology.
    """
    return Combiner(_checked(type, zero, "combiner()", one, merge), zero, one, merge)


def reducer(
    zero: Any,
    step: Callable[[Any, Any], Any],
    *,
    type: Any,  # noqa: A002 - as in a schema
    merge: Callable[[Any, Any], Any] | None = None,
) -> Aggregate:
    """Start with `zero`, and change the value with each row, in order, by `step`.

    `merge` merges the values of several partitions; without it, rows of one key in two of them
    end the run. So does a `step` that raises or returns another type. `type` is as for
    `combiner`. Raises InvalidTopology.
    """
    given = (step,) if merge is None else (step, merge)
    return Reducer(_checked(type, zero, "reducer()", *given), zero, step, merge)


def type_of(hint: Any, place: str) -> pa.DataType:
    """Return the column type of a hint, with nullable parts, as in all stores.

    Raises InvalidSchema.
    """
    is_type = isinstance(hint, pa.DataType)
    return with_nulls(hint if is_type else schema_of_hints({"type": hint}, place).field(0).type)


def as_column(values: Sequence[Any], kind: pa.DataType) -> Column:
    """Convert values to a column without loss. Raises AggregateFailed."""
    try:
        return converted(values, pa.field("value", kind))
    except Exception as error:
        raise AggregateFailed(f"a value does not fit {kind}: {error}") from error


def _extreme(field: str, hint: Any, which: Literal["min", "max"]) -> Aggregate:
    place = f"{'least' if which == 'min' else 'most'}('{field}')"
    kind = type_of(hint, place)
    is_other = pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_dictionary(kind)
    has_extremes = not is_other and _has_extremes(kind, which)
    expected = "int, float, Decimal, str, bytes, date or datetime"
    expect(has_extremes, f"{place}, type", hint, expected)
    return Extreme(kind, field, which)


def _has_extremes(kind: pa.DataType, which: Literal["min", "max"]) -> bool:
    """Whether Arrow has a least or greatest of such values: only a trial tells."""
    try:
        _by_group(pa.array([None], kind), np.zeros(1, np.int64), which)
    except pa.ArrowNotImplementedError:
        return False
    return True


def _checked(hint: Any, zero: Any, place: str, *functions: Any) -> pa.DataType:
    for function in functions:
        expect(callable(function), place, function, "a function")
    kind = type_of(hint, place)
    try:
        fits = zero is not None and not as_column([zero], kind).null_count
    except AggregateFailed:
        fits = False
    expect(fits, f"{place}, zero", zero, f"a value of type={hint!r}")
    return kind


def _by_group(values: Column, groups: Groups, how: Literal["sum", "min", "max"]) -> Column:
    table = pa.table({"group": pa.array(groups), "value": values})
    found = table.group_by("group", use_threads=False).aggregate([("value", how)])
    order: Any = np.argsort(found["group"].to_numpy())
    column = found[f"value_{how}"].combine_chunks().take(pa.array(order))
    ordered: Column = column if how == "sum" else column.cast(values.type)
    return ordered


def _folded(
    kind: pa.DataType, merge: Callable[[Any, Any], Any], zero: Any, values: Column, groups: Groups
) -> Column:
    found = [copy.deepcopy(zero) for _ in range(int(groups.max(initial=-1)) + 1)]
    for value, group in zip(_values(values), groups.tolist(), strict=True):
        if value is not None:
            found[group] = _called(merge, found[group], value)
    return as_column(found, kind)


def _values(column: Column) -> list[Any]:
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return values


def _called(function: Callable[[Any, Any], Any], value: Any, other: Any) -> Any:
    try:
        return function(value, other)
    except AggregateFailed:
        raise
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise AggregateFailed(f"{name} raised {type(error).__name__}: {error}") from error
