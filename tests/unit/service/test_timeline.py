"""What a timeline says of a record."""

from headrace.testing import Event


def test_an_event_can_be_read_by_a_person():
    place = "orders", 1, 7, 1
    assert str(Event(1.5, "read", *place)) == "1.5 s orders[1]@7 read (attempt 1)"
    failed = Event(1.5, "failed", *place, "parse", "not yet")
    assert str(failed) == "1.5 s orders[1]@7 failed in parse (attempt 1): not yet"
