import asyncio
import json
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headrace import bolt
from headrace.sinks import DiscardSink
from headrace.testing import topology_test
from tests.support.bolts import Keeps, Untold, made, new_topology
from topology.monitoring import BOUNDS, FailureLog, Histogram, RecentFailure, error_at, line_of


def buckets(spread):
    limits = (*BOUNDS, float("inf"))
    return {limit: n for limit, n in zip(limits, spread.counts, strict=True) if n}


def test_duration_is_counted_below_its_bound_and_several_with_their_mean():
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 1_000.0):
        histogram.add(seconds)
    before = histogram.distribution()
    assert buckets(before) == {0.000_001: 1, 0.001: 1, 0.005: 1, float("inf"): 1}
    assert before.seconds == pytest.approx(1_000.0021)
    histogram.add(2.0, 1_000)
    histogram.add(2.0, 0)
    assert buckets(histogram.distribution())[0.005] == 1_001
    assert before.count == 4, "a snapshot"


def test_durations_together_count_as_one_by_one_and_untimed_ones_like_them():
    seconds = [bound * factor for bound in BOUNDS for factor in (0.9, 1.0, 1.1)]
    one_by_one, at_once, with_others = Histogram(), Histogram(), Histogram()
    for each in seconds:
        one_by_one.add(each)
    at_once.add_each(seconds)
    assert at_once.distribution().counts == one_by_one.distribution().counts
    assert at_once.distribution().seconds == pytest.approx(one_by_one.distribution().seconds)
    with_others.add_each([0.002, 0.002, 0.2], others=4)
    assert buckets(with_others.distribution()) == {0.005: 5, 0.5: 2}
    assert with_others.distribution().seconds == pytest.approx(0.204 * 7 / 3)


SECONDS = 0.02  # of a call, or per row


def plain(value):
    time.sleep(SECONDS)
    return value


def many(value):
    yield plain(value)


async def waiting(value):
    await asyncio.sleep(SECONDS)
    return value


@bolt(vectorised=True)
def per_row(batch):
    time.sleep(SECONDS * batch.num_rows)
    return batch


def keeps(bolt_, tuple_, collector):
    plain(tuple_)
    collector.ack(tuple_)


@pytest.mark.parametrize(
    ("step", "is_ordered"),
    [
        (bolt(plain), False),
        (bolt(plain), True),
        (bolt(many), False),
        (bolt(waiting), False),
        (bolt(blocking=True)(plain), False),
        (per_row, False),
        (made(Keeps, process=keeps), False),
    ],
)
def test_calls_of_every_kind_of_bolt_are_timed(step, is_ordered):
    topology, stream = new_topology()
    (stream.ordered() if is_ordered else stream).then(step, name="step").into(DiscardSink())
    with topology_test(topology) as kit:
        kit.send(b"1", b"2", b"3")
        spread = kit._pipeline.statistics().call_times["step"]
    assert spread.count == 3
    assert 3 * SECONDS * 0.9 <= spread.seconds < 10
    assert min(buckets(spread)) >= 0.01


def logged(call, *args, **options):
    with capture_logs() as logs:
        call(*args, **options)
    return [(line["step"], line["error_class"], line["error"], line["count"]) for line in logs]


def test_further_failures_wait_for_the_next_line():
    now = 0.0
    log = FailureLog(lambda: now)

    def failed(text):
        return logged(log.record, "step_failing", "parse", ValueError(text))

    assert failed("a") == [("parse", "ValueError", "a", 1)]
    now = 9.9
    assert failed("b") == failed("c") == logged(log.log_due) == []
    now = 10.0
    assert failed("d") == [("parse", "ValueError", "d", 3)]
    assert failed("e") == []
    now = 20.0
    assert logged(log.log_due) == [("parse", "ValueError", "e", 1)]
    assert failed("f") == []  # 10 s after that line
    assert logged(log.log_due, all_of_it=True) == [("parse", "ValueError", "f", 1)]
    now = 40.0
    assert logged(log.log_due) == []
    assert log._told == {}, "kinds that do not fail any more are forgotten"


def test_each_event_step_and_class_has_its_own_lines():
    log = FailureLog(lambda: 0.0)
    kinds = [("a", "parse", ValueError), ("a", "parse", KeyError), ("a", "enrich", ValueError)]
    for event, step, error in [*kinds, ("b", "parse", ValueError)]:
        assert len(logged(log.record, event, step, error("a"))) == 1


def test_only_the_first_failure_of_a_kind_has_its_traceback():
    def raised():
        try:
            json.loads("{")
        except ValueError as error:
            return error

    now = 0.0
    log = FailureLog(lambda: now)
    with capture_logs() as logs:
        for _ in range(3):
            log.log_due()
            log.record("step_failing", "parse", raised())
            now += 30.0
        log.record("step_failing", "parse", KeyError("never raised"))
    assert ["exception" in line for line in logs] == [True, False, False, False]
    place, code = logs[0]["exception"].splitlines()
    line = raised.__code__.co_firstlineno + 2
    assert place.endswith(f'{Path(__file__).name}", line {line}, in raised')
    assert code.strip() == 'json.loads("{")', "the frames of a library are left out"
    assert logs[-1]["error"] == "KeyError: 'never raised'"


def divides_in(filename):
    return partial(eval, compile("1 / 0", filename, "eval"))


@pytest.mark.parametrize(
    ("fails", "place"),
    [
        (lambda: json.loads("{"), "tests/unit/topology/test_monitoring.py:"),
        (lambda: pa.array([1, "a"]), "tests/unit/topology/test_monitoring.py:"),
        (lambda: setattr(RecentFailure(0.0, *"abcd", 1), "at", 1.0), "tests/unit/topology/test_m"),
        (divides_in("<string>"), "tests/unit/topology/test_monitoring.py:"),
        (divides_in("/home/me/.local/lib/python3.11/site-packages/a.py"), "tests/unit/topology/"),
        (divides_in("/usr/lib/python3/dist-packages/a.py"), "tests/unit/topology/"),
        (divides_in("/opt/flow/bolts.py"), "/opt/flow/bolts.py:1"),
        (divides_in("/tmp/ipykernel_7/1.py"), "/tmp/ipykernel_7/1.py:1"),  # noqa: S108 - not read
        (divides_in("<ipython-input-1-ab>"), "<ipython-input-1-ab>:1"),
    ],
)
def test_place_of_an_error_is_a_line_that_the_user_wrote(fails, place):
    with pytest.raises((ArithmeticError, AttributeError, ValueError)) as raised:
        fails()
    assert error_at(raised.value).startswith(place)


def test_an_error_is_one_short_line():
    assert line_of(ValueError("one\ntwo")) == "one"
    assert line_of(ValueError()) == "ValueError"
    assert line_of(Untold()) == "Untold"
    assert len(line_of(ValueError("x" * 10_000))) == 500
