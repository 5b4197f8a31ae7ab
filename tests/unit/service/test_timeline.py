"""What a timeline says of a record."""

from partition.records import Partition
from service.testing.timeline import Timeline

ORDERS = Partition("orders", 1)


def test_a_record_is_read_once_and_then_retried_with_its_attempts():
    timeline = Timeline()
    timeline.emitted(0.0, ORDERS, [7, 8])
    timeline.note(0.0, "failed", ORDERS, 7, "parse", "not yet")
    timeline.emitted(5.0, ORDERS, [7])
    assert [(e.what, e.attempt, e.seconds) for e in timeline.of(ORDERS, 7)] == [
        ("read", 1, 0.0),
        ("failed", 1, 0.0),
        ("retried", 2, 5.0),
    ]
    assert [e.what for e in timeline.of(ORDERS, 8)] == ["read"]


def test_what_belongs_to_no_record_is_left_out():
    timeline = Timeline()
    timeline.note(0.0, "resolved", ORDERS, 7)
    assert timeline.events == []


def test_an_event_can_be_read_by_a_person():
    timeline = Timeline()
    timeline.emitted(1.5, ORDERS, [7])
    timeline.note(1.5, "failed", ORDERS, 7, "parse", "not yet")
    assert [str(event) for event in timeline.events] == [
        "1.5 s orders[1]@7 read (attempt 1)",
        "1.5 s orders[1]@7 failed in parse (attempt 1): not yet",
    ]
