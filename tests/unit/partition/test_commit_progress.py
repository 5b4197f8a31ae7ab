"""What lies behind the stored offset: records that a crash would repeat (promise 10)."""

from partition.ledger import CommitProgress


def after(*, read, offset=100):
    stored = CommitProgress(offset)
    stored.read += read
    return stored


def test_all_that_was_read_is_not_stored_at_first():
    stored = after(read=30)
    assert (stored.offset, stored.unstored) == (100, 30)


def test_a_stored_offset_has_the_records_below_it_that_were_read_when_it_was_submitted():
    stored = after(read=30)
    stored.submit(120, behind=10)
    stored.read += 5
    assert stored.unstored == 35
    stored.mark(120)
    assert (stored.offset, stored.stored_or_submitted, stored.unstored) == (120, 120, 15)


def test_it_never_goes_back():
    """Promise 2."""
    stored = after(read=30)
    stored.submit(120, behind=10)
    stored.mark(120)
    stored.mark(110)
    assert (stored.offset, stored.unstored) == (120, 10)


def test_an_offset_that_was_not_submitted_last_tells_nothing_of_the_records_below_it():
    stored = after(read=30)
    stored.submit(110, behind=20)
    stored.submit(120, behind=10)
    stored.mark(110)
    assert (stored.offset, stored.unstored) == (110, 30)


def test_where_it_goes_on_from_a_stored_offset_nothing_lies_behind_it():
    stored = after(read=30)
    stored.restart(90, is_stored=True)
    assert (stored.offset, stored.unstored, stored.read) == (90, 0, 30)


def test_what_was_on_its_way_before_does_not_count_where_it_goes_on():
    stored = after(read=30)
    stored.submit(120, behind=10)
    stored.restart(100, is_stored=False)
    assert stored.stored_or_submitted == 100
    assert stored.unstored == 30
