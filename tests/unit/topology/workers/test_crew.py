"""Who works, and what takes too long."""

from structlog.testing import capture_logs

from topology.workers.call import Call
from topology.workers.runners import Crew


def begin(crew, at):
    worker = crew.hire()
    worker.started = at
    worker.call = Call("v", 1, 1, 1, 1)
    return worker


def test_a_crew_grows_to_its_size():
    crew = Crew(2, 10.0)
    begin(crew, 0.0)
    assert crew.can_grow
    begin(crew, 0.0)
    assert not crew.can_grow
    assert crew.in_flight == 2


def test_a_call_is_overdue_once_its_time_is_over():
    crew = Crew(3, 10.0)
    early, late = begin(crew, 0.0), begin(crew, 5.0)
    assert list(crew.overdue(9.9)) == []
    assert list(crew.overdue(10.0)) == [(early, early.call)]
    crew.abandon(early)
    assert list(crew.overdue(14.9)) == []
    assert [worker for worker, _call in crew.overdue(15.0)] == [late]


def test_a_call_that_begins_after_a_look_is_seen_in_time():
    crew = Crew(1, 10.0)
    assert list(crew.overdue(0.0)) == []
    worker = begin(crew, 3.0)
    assert list(crew.overdue(12.9)) == []
    assert [found for found, _call in crew.overdue(13.0)] == [worker]


def test_without_a_time_out_nothing_is_overdue():
    crew = Crew(1, None)
    begin(crew, 0.0)
    assert list(crew.overdue(1e9)) == []


def test_as_many_may_be_abandoned_as_there_are_workers():
    crew = Crew(1, 10.0)
    crew.abandon(begin(crew, 0.0))
    assert crew.can_grow  # another takes its place
    crew.abandon(begin(crew, 0.0))
    assert (crew.abandoned, crew.timeouts) == (2, 2)
    assert not crew.can_grow


def test_an_abandoned_worker_that_comes_back_stays_only_if_it_is_needed():
    crew = Crew(1, 10.0)
    first = begin(crew, 0.0)
    crew.abandon(first)
    second = begin(crew, 0.0)
    assert not crew.returned(first, late=True)
    crew.abandon(second)
    assert crew.returned(second, late=False)
    assert (crew.abandoned, crew.late, crew.can_grow) == (0, 1, False)


def test_a_crew_whose_calls_never_end_is_told_once():
    crew = Crew(1, 10.0)
    crew.abandon(begin(crew, 0.0))
    with capture_logs() as logs:
        for now in (10.0, 10.5, 11.5, 12.5, 99.0):
            crew.watch("slow", now)
    assert [(line["event"], line["step"]) for line in logs] == [("bolt_calls_never_end", "slow")]


def test_it_is_known_since_when_a_crew_has_no_worker_left():
    crew = Crew(1, 10.0)
    first = begin(crew, 0.0)
    crew.abandon(first)
    crew.watch("slow", 10.0)
    assert crew.ended_since is None  # another may take its place
    crew.abandon(begin(crew, 10.0))
    for now in (20.0, 21.0, 99.0):
        crew.watch("slow", now)
    assert crew.ended_since == 20.0
    assert crew.returned(first, late=True)
    crew.watch("slow", 100.0)
    assert crew.ended_since is None
