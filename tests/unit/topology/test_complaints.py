"""The rate-limited log of repeated failures."""

import pytest
from structlog.testing import capture_logs

from topology.monitoring import Complaints, line_of


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def complaints(clock):
    return Complaints(lambda: clock[0])


def logged(call, *args, **options):
    with capture_logs() as logs:
        call(*args, **options)
    return [(line["step"], line["error_class"], line["error"], line["count"]) for line in logs]


def hear(complaints, text):
    return logged(complaints.hear, "step_failing", "parse", ValueError(text))


def test_further_failures_wait_for_the_next_line(complaints, clock):
    assert hear(complaints, "a") == [("parse", "ValueError", "a", 1)]
    clock[0] = 9.9
    assert hear(complaints, "b") == hear(complaints, "c") == logged(complaints.tell) == []
    clock[0] = 10.0
    assert hear(complaints, "d") == [("parse", "ValueError", "d", 3)]
    assert hear(complaints, "e") == []
    clock[0] = 20.0
    assert logged(complaints.tell) == [("parse", "ValueError", "e", 1)]
    assert hear(complaints, "f") == []  # 10 s after that line
    assert logged(complaints.tell, all_of_it=True) == [("parse", "ValueError", "f", 1)]
    clock[0] = 40.0
    assert logged(complaints.tell) == []
    assert complaints._told == {}, "kinds that do not fail any more are forgotten"


def test_each_event_step_and_class_has_its_own_lines(complaints):
    for event, step, error in [
        ("step_failing", "parse", ValueError("a")),
        ("step_failing", "parse", KeyError("a")),
        ("step_failing", "enrich", ValueError("a")),
        ("tick_failed", "parse", ValueError("a")),
    ]:
        assert len(logged(complaints.hear, event, step, error)) == 1


def test_an_error_is_one_short_line():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert line_of(ValueError("one\ntwo")) == "one"
    assert line_of(ValueError()) == "ValueError"
    assert line_of(Mute()) == "Mute"
    assert len(line_of(ValueError("x" * 10_000))) == 500
