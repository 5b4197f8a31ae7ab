"""Which of the calls that wait for a key is next."""

from hypothesis import given
from hypothesis import strategies as st

from topology.workers.call import Call
from topology.workers.key_queue import WaitingCalls


def call(value, record_id, tree, partition=0):
    return Call(value, tree, 1, record_id, partition, "k")


def filled(*calls):
    waiting = WaitingCalls()
    for one in calls:
        waiting.add(call(*one))
    return waiting


def rest(waiting):
    taken = []
    while (one := waiting.take()) is not None:
        taken.append(one.value)
    assert len(waiting) == 0
    return taken


def test_calls_start_in_the_order_of_their_arrival():
    waiting = filled(("a1", 1, 1), ("b1", 2, 2), ("a2", 1, 1), ("b2", 2, 2))
    assert len(waiting) == 4
    assert sorted(one.value for one in waiting) == ["a1", "a2", "b1", "b2"]
    assert rest(waiting) == ["a1", "b1", "a2", "b2"]


def test_all_values_of_a_record_that_comes_again_start_in_its_place():
    waiting = filled(("b1", 2, 2), ("c1", 3, 3), ("b2", 2, 2), ("c2", 3, 3))
    for value in ("B1", "B2", "B3"):
        waiting.add(call(value, 2, 7))
    assert len(waiting) == 5
    assert rest(waiting) == ["B1", "B2", "B3", "c1", "c2"]


def test_a_value_of_it_that_comes_late_starts_there_too():
    waiting = filled(("b", 2, 2), ("c", 3, 3))
    waiting.add(call("B1", 2, 7))
    assert waiting.take().value == "B1"
    waiting.add(call("B2", 2, 7))
    assert rest(waiting) == ["B2", "c"]


def test_a_record_that_leads_and_comes_yet_again_leads_with_the_new_try_alone():
    waiting = filled(("c", 3, 3))
    waiting.lead(7)
    waiting.add(call("A1", 1, 7))
    waiting.add(call("A2", 1, 7))
    waiting.add(call("a1", 1, 8))
    assert rest(waiting) == ["a1", "c"]


def test_what_led_goes_on_after_the_record_that_failed_meanwhile():
    waiting = filled(("c", 3, 3))
    waiting.lead(7)
    waiting.add(call("late", 1, 7))
    assert not waiting.fail(call("b", 2, 2))
    waiting.lead(8)
    waiting.add(call("b", 2, 8))
    waiting.add(call("later", 1, 7))
    assert rest(waiting) == ["b", "late", "later", "c"]


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), max_size=60))
def test_whatever_comes_again_only_the_last_try_of_a_record_waits_and_in_its_place(moves):
    """Against a list of records, in the order of their first arrival, and their last tries.

    Here a try is one value, or more that arrive together.
    """
    waiting, model, trees = WaitingCalls(), [], 0
    for record_id, takes, is_twice in moves:
        if takes:
            if not model:
                assert waiting.take() is None
                continue
            taken, tries = model.pop(0)
            for tree in tries:
                one = waiting.take()
                assert (one.record_id, one.tree) == (taken, tree)
            continue
        trees += 1
        tries = [trees] * (1 + is_twice)
        for tree in tries:
            waiting.add(call(record_id, record_id, tree))
        places = {waits: place for place, (waits, _tries) in enumerate(model)}
        if record_id in places:
            model[places[record_id]] = (record_id, tries)
        else:
            model.append((record_id, tries))
        assert len(waiting) == sum(len(each) for _record_id, each in model)
        assert sorted(one.tree for one in waiting) == sorted(t for _o, each in model for t in each)
