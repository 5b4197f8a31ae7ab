import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.columns import fit
from sinks.tables.files import write_good_rows

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


class Files:
    """Writes lists, but none with a bad number; knows which of them are there."""

    def __init__(self, bad, error=pa.ArrowInvalid):
        self.bad = bad
        self.error = error
        self.calls = 0
        self.there = []

    def write(self, rows):
        self.calls += 1
        numbers = rows["n"].to_pylist()
        if not set(self.bad).isdisjoint(numbers):
            raise self.error("overflow\nof something")
        self.there.append(numbers)
        return numbers

    def discard(self, numbers):
        self.there.remove(numbers)


class CertificateError(OSError, ValueError):
    """As ssl.SSLCertVerificationError is both."""


def numbered(*rows):
    return fit([[{"n": row} for row in rows]], SCHEMA)


def put(files, *rows):
    written, fitted = write_good_rows(numbered(*rows), files.write, files.discard)
    assert files.there == [written] == [fitted.table["n"].to_pylist()]
    return fitted.rejected


@pytest.mark.parametrize("error", [pa.ArrowInvalid, ValueError, OverflowError])
def test_bad_rows_are_rejected_alone_and_all_others_written_as_one(error):
    """Promise 13. Rows that do not fit have their places too."""
    files = Files({3, 6}, error)
    rejected = put(files, 0, "x", 1, 3, 2, None, 6, 7)
    assert set(rejected) == {1, 3, 5, 6}
    assert rejected[3] == rejected[6] == f"no file can hold it: {error.__name__}: overflow"
    assert files.there == [[0, 1, 2, 7]]


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_whichever_rows_are_bad_only_they_are_rejected(is_bad):
    bad = {number for number, bad in enumerate(is_bad) if bad}
    files = Files(bad)
    assert set(put(files, *range(len(is_bad)))) == bad
    steps = math.ceil(math.log2(len(is_bad))) + 1
    assert files.calls <= 2 + min(2 * steps * len(bad), 2 * len(is_bad))


def test_if_not_even_no_rows_can_be_written_it_is_no_row_that_is_bad():
    """The files' own world is out of order, and comes right."""

    class Shut(Files):
        def write(self, rows):
            raise ValueError("shut")

    for count in (1, 5):
        with pytest.raises(ValueError, match="shut"):
            put(Shut(()), *range(count))


def test_if_every_row_can_be_written_by_itself_the_error_is_passing():
    class TooMany(Files):
        def write(self, rows):
            if rows.num_rows > 2:
                raise ValueError("too many")
            return super().write(rows)

    files = TooMany(())
    with pytest.raises(ValueError, match="too many"):
        put(files, 1, 2, 3)
    assert not files.there


@pytest.mark.parametrize("error", [OSError, CertificateError, RuntimeError, MemoryError])
def test_an_outage_is_told_at_once_and_no_rows_are_divided(error):
    files = Files({1}, error)
    with pytest.raises(error):
        put(files, 0, 1, 2)
    assert files.calls == 1


def test_an_outage_in_the_search_leaves_nothing():
    class Ending(Files):
        def write(self, rows):
            if self.calls == 5:
                raise CertificateError("expired")
            return super().write(rows)

    files = Ending({9})
    with pytest.raises(CertificateError):
        put(files, *range(10))
    assert not files.there
