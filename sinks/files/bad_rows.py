"""Rows that no file can hold: found by halving, so that one never stops the others."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa

from sinks.columns import Fitted

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
        if isinstance(error, OSError) or not rows.num_rows:
            raise
        wrong = dict(_bad_rows(rows, write, discard))
        if not wrong:
            raise
    others = fitted.without(wrong)
    return write(others.table), others


def _bad_rows(
    rows: pa.Table, write: Callable[[pa.Table], Made], discard: Callable[[Made], object]
) -> Iterator[tuple[int, str]]:
    spans = [(0, rows.num_rows)]
    while spans:
        start, stop = spans.pop()
        try:
            discard(write(rows.slice(start, stop - start)))
        except _OF_VALUES as error:
            if isinstance(error, OSError):
                raise
            if stop - start == 1:
                yield start, f"no file can hold it: {_line(error)}"
                continue
            middle = (start + stop) // 2
            spans += [(middle, stop), (start, middle)]


def _line(error: Exception) -> str:
    said = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {said}"[:_LONGEST]
