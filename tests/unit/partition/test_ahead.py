"""Taking records ahead: what is kept, what is given back, and what is dropped."""

import threading

import pytest

from partition.chunk import Partition
from partition.kafka.ahead import Ahead

A, B = Partition("t", 0), Partition("t", 1)


class Record:
    def __init__(self, partition, offset):
        self._place = partition, offset

    def topic(self):
        return self._place[0].topic

    def partition(self):
        return self._place[0].number

    def offset(self):
        return self._place[1]


class Client:
    """Gives what it was told to, and says on which threads it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.threads = set()

    def consume(self, num_messages, timeout):
        self.threads.add(threading.current_thread().name)
        assert (num_messages, timeout) == (10, 0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def ahead():
    made = Ahead()
    yield made
    made.close()


def places(records):
    return [(record.partition(), record.offset()) for record in records]


def begun(ahead, *records):
    client = Client(list(records))
    ahead.start(client, 10)
    ahead.settle()
    return client


def test_what_is_there_is_taken_once_on_a_thread_of_its_own(ahead):
    client = begun(ahead, Record(A, 1), Record(B, 1))
    assert places(ahead.take()) == [(0, 1), (1, 1)]
    assert ahead.take() == []
    assert client.threads == {"kafka-ahead"}


def test_what_the_client_raises_is_raised_to_the_owner_and_the_next_try_goes_on(ahead):
    client = Client(RuntimeError("closed"), [Record(A, 1)])
    ahead.start(client, 10)
    ahead.settle()
    with pytest.raises(RuntimeError, match="closed"):
        ahead.take()
    ahead.start(client, 10)
    ahead.settle()
    assert places(ahead.take()) == [(0, 1)]


def test_records_of_a_paused_partition_wait_and_come_first_when_it_goes_on(ahead):
    """Promise 11: nothing is skipped, because the client does not deliver them again."""
    begun(ahead, Record(A, 1), Record(B, 1), Record(A, 2))
    ahead.withhold(A)
    assert places(ahead.take()) == [(1, 1)]
    begun(ahead, Record(B, 2))
    ahead.give_back(A)
    assert places(ahead.take()) == [(0, 1), (0, 2), (1, 2)]


def test_records_of_a_partition_that_is_let_go_are_dropped_also_when_it_was_paused(ahead):
    begun(ahead, Record(A, 1), Record(B, 1))
    ahead.withhold(A)
    ahead.drop([A])
    ahead.give_back(A)
    begun(ahead, Record(A, 2), Record(B, 2))
    ahead.drop([B])
    assert places(ahead.take()) == [(0, 2)]


def test_closing_ends_the_thread_and_settling_without_a_start_waits_for_nothing(ahead):
    ahead.settle()
    begun(ahead, Record(A, 1))
    ahead.close()
    assert all(thread.name != "kafka-ahead" for thread in threading.enumerate())
    assert ahead.take() == []
