import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from topology.record import Reject
from topology.workers.key_queue import Call, CallQueue, KeyQueue


def call(name, key="k", record_id=None, tree=None, partition=0):
    """A call whose record and tree are named alike unless told otherwise."""
    record_id = ord(name) if record_id is None else record_id
    return Call(name, record_id if tree is None else tree, 1, record_id, partition, key)


def take_all(queue):
    return list(iter(queue.take, None))


def names(calls):
    return "".join(one.value for one in calls)


def fail(queue, failed):
    failed.error = RuntimeError("again")
    queue.end(failed)


def test_late_values_of_a_retried_record_go_before_the_others():
    """Also if another record of the key fails meanwhile: then they are next."""
    queue = KeyQueue()
    queue.add([call("a"), call("b"), call("x")])
    fail(queue, queue.take())
    a, b = ord("a"), ord("b")
    queue.add([call("A", record_id=a, tree=7), call("B", record_id=a, tree=7)])
    order = names([first := queue.take()])
    queue.add([call("C", record_id=a, tree=7)])
    queue.end(first)
    while (one := queue.take()) is not None:
        order += one.value
        if one.value == "b":
            queue.add([call("D", record_id=a, tree=7)])
            fail(queue, one)
            queue.add([call("E", record_id=b, tree=8), call("F", record_id=b, tree=8)])
            queue.add([call("G", record_id=a, tree=7)])
        else:
            queue.end(one)
    assert order == "ABCbEFDGx"


def test_a_released_record_frees_every_key_it_holds():
    queue = KeyQueue()
    queue.add([call("a", 1, record_id=5), call("b", 2, record_id=5), call("c", 1), call("d", 2)])
    for one in take_all(queue):
        fail(queue, one)
    assert len(queue.held) == 1
    queue.release([4, 5, 6])
    assert not queue.held
    assert names(take_all(queue)) == "cd"


def test_a_partition_that_is_lost_frees_the_keys_its_records_hold_and_what_waits_is_dropped():
    queue = KeyQueue()
    queue.add([call("a", 1, partition=3), call("b", 2, partition=4), call("c", 1), call("d", 2)])
    for one in take_all(queue):
        fail(queue, one)
    queue.add([call("e", 1, partition=3), call("f", 2, partition=3)])
    queue.add([call("g", 3, partition=3), call("h", 3)])
    assert sorted(names(queue.drop(lambda one: one.partition == 3))) == ["e", "f", "g"]
    assert names(take_all(queue)) == "ch"
    assert len(queue.held) == 1
    assert [one.tree for waiting in queue.blocked() for one in waiting] == [ord("d")]


@pytest.mark.parametrize("kind", [CallQueue, KeyQueue])
def test_calls_of_a_suspended_partition_wait_until_it_is_resumed(kind):
    queue = kind()
    queue.add([call("a", 1, partition=3), call("b", 2, partition=4)])
    queue.suspend(3)
    queue.add([call("c", 3, partition=3), call("d", 4, partition=4)])
    assert names(take_all(queue)) == "bd"
    assert (queue.num_waiting, sorted(queue.waiting())) == (2, [ord("a"), ord("c")])
    queue.resume(3)
    assert names(take_all(queue)) == "ac"


class World(RuleBasedStateMachine):
    """Records arrive at a queue; their calls end well or not, and those that failed come again.

    A record has one or more values of one key. `arrived` has each key's records in order.
    """

    keys_per_record = 1

    def __init__(self):
        super().__init__()
        self.queue = KeyQueue()
        self.arrived = {}  # key: owners in order
        self.values = {}  # owner: the keys of its values
        self.attempt = {}  # owner: the tree of its live attempt, None while it waits
        self.left = {}  # owner: values of the live attempt that have not ended
        self.running = []
        self.trees = 0

    @rule(keys=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def arrive(self, keys):
        if self.keys_per_record == 1:
            keys = [keys[0]] * len(keys)
        record_id = len(self.values)
        self.values[record_id] = keys
        for key in set(keys):
            self.arrived.setdefault(key, []).append(record_id)
        self.send(record_id)

    def send(self, record_id):
        self.trees += 1
        keys = self.values[record_id]
        self.attempt[record_id], self.left[record_id] = self.trees, len(keys)
        self.queue.add(
            [Call(record_id, self.trees, 1, record_id, record_id % 2, key) for key in keys]
        )

    @rule()
    def start(self):
        one = self.queue.take()
        if one is None:
            return
        assert one.key not in [other.key for other in self.running]
        self.running.append(one)
        self.check_order(one)

    def check_order(self, one):
        earlier = self.arrived[one.key][: self.arrived[one.key].index(one.record_id)]
        assert all(record_id not in self.attempt for record_id in earlier)  # they are complete

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from(["good", "again", "final"]))
    def end(self, data, outcome):
        at = data.draw(st.integers(0, len(self.running) - 1))
        self.end_one(self.running.pop(at), outcome)

    def end_one(self, one, outcome):
        record_id = one.record_id
        if outcome != "good":
            one.error = Reject("no") if outcome == "final" else RuntimeError("again")
        self.queue.end(one)
        if self.attempt.get(record_id) != one.tree:  # void: the tree had resolved
            if one.comes_again:
                self.queue.release([record_id])
        elif one.comes_again:
            self.attempt[record_id] = None
        else:
            self.left[record_id] -= 1
            if not self.left[record_id]:
                del self.attempt[record_id]
                self.queue.release([record_id])

    @precondition(lambda self: None in self.attempt.values())
    @rule(data=st.data())
    def come_again(self, data):
        due = [record_id for record_id, tree in self.attempt.items() if tree is None]
        self.send(data.draw(st.sampled_from(due)))

    @precondition(lambda self: self.waiting_whole())
    @rule(data=st.data())
    def fail_elsewhere_while_all_of_it_waits(self, data):
        self.send(data.draw(st.sampled_from(self.waiting_whole())))

    def waiting_whole(self):
        """Records none of whose values has had its turn."""
        begun = {one.record_id for one in [*self.running, *self.queue.ready]}
        return [
            record_id
            for record_id, left in self.left.items()
            if left == len(self.values[record_id])
            and self.attempt.get(record_id) is not None
            and record_id not in begun
        ]

    @invariant()
    def one_try_of_a_record_waits(self):
        for state in self.queue._keys.values():
            tries = {} if state is None else {(one.record_id, one.tree) for one in state.waiting}
            assert len(tries) == len({record_id for record_id, _tree in tries})

    @invariant()
    def nothing_is_held_without_reason(self):
        for record_id in self.queue.held:
            assert record_id in self.attempt

    @invariant()
    def what_waits_is_counted(self):
        assert self.queue.num_waiting == len(self.queue.waiting())

    def teardown(self):
        """Whatever happened, all of it can still be finished, and leaves nothing behind."""
        for _ in range(10_000):
            if self.running:
                self.end_one(self.running.pop(), "good")
            elif (one := self.queue.take()) is not None:
                self.running.append(one)
            else:
                due = [record_id for record_id, tree in self.attempt.items() if tree is None]
                if not due:
                    break
                self.send(due[-1])
        assert not self.attempt
        assert not self.queue._keys
        assert not self.queue.held
        assert self.queue.waiting() == []


class WorldOfManyKeys(World):
    """Here a record's values differ in their keys, and records fail elsewhere, too.

    Then a value is processed again that was good, after later ones: only that nothing stops for
    ever, and that a key has one call at a time, is promised.
    """

    keys_per_record = 3

    def check_order(self, one):
        pass

    @precondition(lambda self: any(tree is not None for tree in self.attempt.values()))
    @rule(data=st.data())
    def fail_elsewhere(self, data):
        live = [record_id for record_id, tree in self.attempt.items() if tree is not None]
        self.attempt[data.draw(st.sampled_from(live))] = None

    @precondition(lambda self: None in self.attempt.values())
    @rule(data=st.data())
    def give_up(self, data):
        due = [record_id for record_id, tree in self.attempt.items() if tree is None]
        record_id = data.draw(st.sampled_from(due))
        del self.attempt[record_id]
        self.queue.release([record_id])


SETTINGS = settings(max_examples=80, stateful_step_count=40)


def test_whatever_fails_the_records_of_a_key_are_processed_in_the_order_of_their_arrival():
    run_state_machine_as_test(World, settings=SETTINGS)


def test_whatever_fails_no_key_stops_for_ever():
    run_state_machine_as_test(WorldOfManyKeys, settings=SETTINGS)
