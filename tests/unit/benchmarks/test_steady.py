"""The publisher keeps to its rate, and says so if it cannot."""

import pytest

from benchmarks.job import Job
from benchmarks.steady import Publisher, due

JOB = Job("m", "v", kafka="127.0.0.1:1", zookeeper="", topic="t", records=10, pipeline="p")


def test_records_are_due_from_the_first_moment_on_at_the_rate_until_all_are():
    assert due(0.0, 20_000, 100_000) == 1
    assert due(0.5, 20_000, 100_000) == 10_001
    assert due(60.0, 20_000, 100_000) == 100_000


def test_one_that_was_never_told_to_begin_kept_no_rate():
    with Publisher(JOB, 10) as publisher:
        publisher.check()
        with pytest.raises(SystemExit, match="not started"):
            publisher.per_second()


def test_one_that_fails_is_noticed():
    with Publisher(JOB, 0) as publisher:  # at no records a second it would never end
        publisher.start()
        publisher.start()
        assert publisher._process is not None
        publisher._process.kill()
        publisher._process.wait()
        with pytest.raises(SystemExit, match="has failed"):
            publisher.check()
