"""Rows that no file can hold: found by halving, so that one never stops the others."""

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from sinks.columns import Fitted
from sinks.halving import failing

Made = TypeVar("Made")

# What writing raises of values; pyarrow's ArrowInvalid and Python's UnicodeErrors are among them.
_OF_VALUES = (ValueError, OverflowError)
_LONGEST = 200  # characters of an error in a reason


def write_good_rows(
    fitted: Fitted, write: Callable[[pa.Table], Made], discard: Callable[[Made], object]
) -> tuple[Made, Fitted]:
    """Write the rows that fit, as one, without those that no file can hold; these are rejected.

    `write` makes files that nobody sees, or raises and leaves none; it may be called again with
    any of the rows. What it makes of some of them, while bad ones are sought, is discarded. Raises
    what `write` raises if no row is to blame: each can be written by itself. Costs some
    2 · log2(rows) calls for each bad row, and at most two for each row.
    """
    rows = fitted.table
    try:
        return write(rows), fitted
    except _OF_VALUES as error:
        if not _is_of_values(error):
            raise

        def try_out(start: int, stop: int) -> None:
            discard(write(rows.slice(start, stop - start)))

        bad = failing(try_out, rows.num_rows, _is_of_values)
        wrong = {row: f"no file can hold it: {_line(error)}" for row, error in bad}
        if not wrong:
            raise
    others = fitted.without(wrong)
    return write(others.table), others


def _is_of_values(error: Exception) -> bool:
    return isinstance(error, _OF_VALUES) and not isinstance(error, OSError)


def _line(error: Exception) -> str:
    said = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {said}"[:_LONGEST]
