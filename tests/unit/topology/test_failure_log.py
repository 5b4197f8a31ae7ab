"""The rate-limited log of repeated failures."""

import pytest
from structlog.testing import capture_logs

from topology.monitoring import FailureLog, line_of


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def failure_log(clock):
    return FailureLog(lambda: clock[0])


def logged(call, *args, **options):
    with capture_logs() as logs:
        call(*args, **options)
    return [(line["step"], line["error_class"], line["error"], line["count"]) for line in logs]


def failed(failure_log, text):
    return logged(failure_log.record, "step_failing", "parse", ValueError(text))


def test_further_failures_wait_for_the_next_line(failure_log, clock):
    assert failed(failure_log, "a") == [("parse", "ValueError", "a", 1)]
    clock[0] = 9.9
    assert failed(failure_log, "b") == failed(failure_log, "c") == logged(failure_log.log_due) == []
    clock[0] = 10.0
    assert failed(failure_log, "d") == [("parse", "ValueError", "d", 3)]
    assert failed(failure_log, "e") == []
    clock[0] = 20.0
    assert logged(failure_log.log_due) == [("parse", "ValueError", "e", 1)]
    assert failed(failure_log, "f") == []  # 10 s after that line
    assert logged(failure_log.log_due, all_of_it=True) == [("parse", "ValueError", "f", 1)]
    clock[0] = 40.0
    assert logged(failure_log.log_due) == []
    assert failure_log._told == {}, "kinds that do not fail any more are forgotten"


def test_each_event_step_and_class_has_its_own_lines(failure_log):
    for event, step, error in [
        ("step_failing", "parse", ValueError("a")),
        ("step_failing", "parse", KeyError("a")),
        ("step_failing", "enrich", ValueError("a")),
        ("tick_failed", "parse", ValueError("a")),
    ]:
        assert len(logged(failure_log.record, event, step, error)) == 1


def test_an_error_is_one_short_line():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert line_of(ValueError("one\ntwo")) == "one"
    assert line_of(ValueError()) == "ValueError"
    assert line_of(Mute()) == "Mute"
    assert len(line_of(ValueError("x" * 10_000))) == 500
