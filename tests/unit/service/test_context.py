"""What the parts of a pipeline share: the results of other threads, and who observes."""

from service.pipeline.context import Observer, Observers, ResultQueue


def test_a_result_that_was_waited_for_is_taken_before_those_behind_it():
    results = ResultQueue()
    for each in ("first", "second", "third"):
        results.put(each)
    results.wait(0.0)
    results.put("fourth")
    assert list(results.take_all()) == ["first", "second", "third", "fourth"]
    assert results.is_empty


def test_what_comes_while_results_are_taken_is_taken_too():
    results = ResultQueue()
    results.put(1)
    taken = []
    for each in results.take_all():
        taken.append(each)
        if each < 3:
            results.put(each + 1)
    assert taken == [1, 2, 3]


class _Losses(Observer):
    def __init__(self) -> None:
        self.lost = []

    def partition_lost(self, index):
        self.lost.append(index)


def test_observers_are_called_for_what_they_override_and_for_nothing_else():
    losses = _Losses()
    on = Observers([Observer(), losses])
    assert on.records_resolved == []
    for notify in on.partition_lost:
        notify(3)
    assert losses.lost == [3]
