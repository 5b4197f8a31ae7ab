"""The coordinator: what may be begun, processed and committed, and when."""

import pytest

from transactions.coordinator import Attempt, Coordinator, Phase
from transactions.errors import BrokenLine, OutcomePending, OutOfOrder, TooManyActive


def line(*, processed=0, recorded=0, planned=0, max_active=9, committed=0):
    """A coordinator with so many transactions in each phase, the lowest first."""
    coordinator = Coordinator[str](max_active=max_active, committed=committed)
    begun = [coordinator.begin(f"r{i + 1}") for i in range(processed + recorded + planned)]
    for attempt in begun[: processed + recorded]:
        assert coordinator.recorded(attempt)
    for attempt in begun[:processed]:
        assert coordinator.processed(attempt)
    return coordinator, begun


def phases(coordinator):
    return [each.phase for each in coordinator.active]


def test_txids_begin_at_one_and_have_no_holes():
    """Promise 14."""
    coordinator, begun = line(processed=1, planned=2)
    assert begun == [(1, 1), (2, 1), (3, 1)]
    coordinator.next_commit()
    coordinator.done(begun[0])
    assert coordinator.begin("r4") == (4, 1)
    assert [each.txid for each in coordinator.active] == [2, 3, 4]


def test_txids_go_on_after_what_is_committed():
    assert Coordinator[str](max_active=1, committed=41).begin("r") == (42, 1)


def test_no_more_are_open_than_allowed():
    coordinator, begun = line(processed=2, max_active=2)
    assert not coordinator.may_begin
    with pytest.raises(TooManyActive, match="2 transactions"):
        coordinator.begin("r")
    coordinator.next_commit()
    assert not coordinator.may_begin  # it is open as long as it is not known to be committed
    coordinator.done(begun[0])
    assert coordinator.may_begin


def test_a_transaction_is_processed_only_once_it_is_recorded():
    coordinator, [attempt] = line(planned=1)
    assert not coordinator.processed(attempt)
    assert phases(coordinator) == [Phase.PLANNED]
    assert coordinator.recorded(attempt)
    assert not coordinator.recorded(attempt)
    assert coordinator.processed(attempt)
    assert phases(coordinator) == [Phase.PROCESSED]


def test_only_the_lowest_goes_to_its_commit():
    """Promise 14."""
    coordinator, begun = line(recorded=2)
    coordinator.processed(begun[1])
    assert coordinator.next_commit() is None
    coordinator.processed(begun[0])
    assert [coordinator.next_commit().txid, coordinator.next_commit().txid] == [1, 2]
    assert coordinator.next_commit() is None


def test_one_is_done_only_after_the_one_below_it():
    """Promise 14."""
    coordinator, begun = line(processed=2)
    coordinator.next_commit()
    coordinator.next_commit()
    with pytest.raises(OutOfOrder, match="1 is to come first"):
        coordinator.done(begun[1])
    assert coordinator.done(begun[0])
    assert coordinator.done(begun[1])
    assert coordinator.committed == 2


def test_one_is_done_once_and_not_before_its_commit():
    coordinator, [attempt] = line(processed=1)
    assert not coordinator.done(attempt)
    coordinator.next_commit()
    assert coordinator.done(attempt)
    assert not coordinator.done(attempt)
    assert coordinator.committed == 1


def test_what_is_known_not_to_be_committed_is_committed_again_in_order():
    coordinator, begun = line(processed=3)
    coordinator.next_commit()
    coordinator.next_commit()
    assert coordinator.not_done(begun[0])
    assert phases(coordinator) == [Phase.PROCESSED] * 3
    assert coordinator.next_commit().attempt == begun[0]
    assert not coordinator.done(begun[1])


def test_one_that_fails_fails_all_later_ones_in_new_attempts():
    coordinator, begun = line(processed=2, recorded=1, planned=1)
    assert coordinator.fail(begun[1]) == ((2, 2), (3, 2), (4, 2))
    assert phases(coordinator) == [Phase.PROCESSED, *[Phase.PLANNED] * 3]
    assert [each.covers for each in coordinator.active] == ["r1", "r2", "r3", "r4"]


def test_after_a_failure_the_record_is_needed_again():
    coordinator, [attempt] = line(processed=1)
    [again] = coordinator.fail(attempt)
    assert not coordinator.processed(again)
    assert coordinator.recorded(again)
    assert coordinator.processed(again)


@pytest.mark.parametrize("failing", [1, 2])
def test_while_an_outcome_is_not_known_nothing_fails_with_it(failing):
    coordinator, begun = line(processed=3)
    coordinator.next_commit()
    coordinator.next_commit()
    before = coordinator.active
    with pytest.raises(OutcomePending, match=f"transaction {failing} "):
        coordinator.fail(begun[failing - 1])
    assert coordinator.active == before
    assert coordinator.fail(begun[2]) == ((3, 2),)  # those after it may
    coordinator.not_done(begun[0])
    assert coordinator.fail(begun[0]) == ((1, 2), (2, 2), (3, 3))


def test_an_event_of_an_older_attempt_changes_nothing():
    """Promise 14."""
    coordinator, [old] = line(processed=1)
    [live] = coordinator.fail(old)
    coordinator.recorded(live)
    before = coordinator.active
    for late in (old, Attempt(1, 3), Attempt(2, 1), Attempt(0, 1)):
        assert not coordinator.recorded(late)
        assert not coordinator.processed(late)
        assert not coordinator.grow(late, "more")
        assert not coordinator.done(late)
        assert not coordinator.not_done(late)
        assert coordinator.fail(late) == ()
    assert coordinator.active == before


def test_the_newest_grows_until_it_is_processed():
    coordinator, begun = line(recorded=1, planned=1)
    assert not coordinator.grow(begun[0], "more")
    assert coordinator.grow(begun[1], "more")
    assert coordinator.newest.covers == "more"
    coordinator.recorded(begun[1])
    assert coordinator.grow(begun[1], "still more")
    assert coordinator.newest.phase is Phase.PROCESSING
    coordinator.processed(begun[1])
    assert not coordinator.grow(begun[1], "too much")


def test_a_replay_grows_no_more():
    coordinator, [attempt] = line(recorded=1)
    [again] = coordinator.fail(attempt)
    assert not coordinator.grow(again, "more")
    taken_over = Coordinator[str](max_active=3, recorded=[(Attempt(1, 1), "r1")])
    assert not taken_over.grow(taken_over.newest.attempt, "more")
    assert taken_over.newest.covers == "r1"


def test_what_was_recorded_is_taken_up_in_the_next_attempts():
    recorded = [(Attempt(42, 1), "a"), (Attempt(43, 7), "b")]
    coordinator = Coordinator[str](max_active=1, committed=41, recorded=recorded)
    assert [each.attempt for each in coordinator.active] == [(42, 2), (43, 8)]
    assert phases(coordinator) == [Phase.PLANNED] * 2
    assert not coordinator.may_begin  # more were recorded than are allowed by now


@pytest.mark.parametrize(
    ("committed", "recorded"),
    [
        (-1, []),
        (0, [Attempt(2, 1)]),
        (1, [Attempt(1, 1)]),
        (0, [Attempt(1, 1), Attempt(3, 1)]),
        (0, [Attempt(2, 1), Attempt(1, 1)]),
        (0, [Attempt(1, 0)]),
    ],
)
def test_a_line_with_a_hole_is_refused(committed, recorded):
    with pytest.raises(BrokenLine):
        Coordinator[str](
            max_active=9, committed=committed, recorded=[(each, "r") for each in recorded]
        )


def test_what_is_forgotten_is_planned_anew_in_higher_attempts():
    coordinator, begun = line(processed=1, recorded=2)
    assert [each.attempt for each in coordinator.forget_after(1)] == begun[1:]
    assert coordinator.begin("other") == (2, 2)
    assert coordinator.grow(Attempt(2, 2), "other and more")
    assert not coordinator.recorded(begun[1])
    assert coordinator.forget_after(5) == ()


def test_what_is_planned_anew_after_a_restart_is_in_higher_attempts():
    coordinator = Coordinator[str](max_active=3, committed=4, attempts={5: 3})
    assert [coordinator.begin("r"), coordinator.begin("r")] == [(5, 4), (6, 1)]


def test_what_may_be_committed_is_not_forgotten():
    coordinator, _begun = line(processed=2)
    coordinator.next_commit()
    with pytest.raises(OutcomePending):
        coordinator.forget_after(0)
    assert len(coordinator.active) == 2


def test_a_transaction_is_found_by_its_txid():
    coordinator, begun = line(planned=2, committed=4)
    assert coordinator.of(6).attempt == begun[1]
    assert [coordinator.of(txid) for txid in (0, 4, 7)] == [None] * 3


def test_no_attempt_is_less_than_the_least_one_allowed():
    coordinator = Coordinator[str](max_active=3, committed=4, attempts={5: 3}, least_attempt=7)
    assert [coordinator.begin("r"), coordinator.begin("r")] == [(5, 7), (6, 7)]
    coordinator.forget_after(5)
    assert coordinator.begin("r") == (6, 8)
