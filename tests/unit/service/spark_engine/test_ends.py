from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any
from unittest.mock import Mock, call

import pytest
from structlog.testing import capture_logs

from partition.errors import KafkaFailed, KafkaUnavailable, TopicMissing
from partition.interfaces import LogEnd, Topic
from partition.records import Partition
from service.spark_engine.planner import LogEndTracker
from tests.support.spark_engine import ONE, TWO, Driving


class Asked:
    def __init__(self):
        self.questions: list[tuple[set[Partition], Future[Mapping[Partition, LogEnd]]]] = []
        self.topic = Mock(side_effect=lambda _name: self.topic_answer)
        self.topic_answer: Future[Topic] = Future()
        self.open, self.close = Mock(), Mock()

    def ends(self, partitions):
        future: Future[Mapping[Partition, LogEnd]] = Future()
        self.questions.append((set(partitions), future))
        return future

    def answer(self, ends):
        told = {partition: LogEnd(end, 0) for partition, end in ends.items()}
        self.questions[-1][1].set_result(told)

    def fail(self, error):
        self.questions[-1][1].set_exception(error)


@pytest.fixture
def asked():
    return Asked()


@pytest.fixture
def ends(asked):
    return LogEndTracker(asked, 0.2)


@pytest.mark.parametrize("first", [None, Topic("t", "id", (0, 1)), KafkaUnavailable("t", "away")])
def test_a_topic_that_is_gone_is_told_of_its_silent_partition(asked, ends, first):
    """Promise 12: nothing of it is run any more, so no task can tell.

    The topic is asked for again after another answer.
    """
    with capture_logs() as logs:
        for now in range(7):
            ends.poll(float(now), [ONE])
            asked.answer({})
        assert ends.error_of(6.0, ONE, 3) is None
        if first is not None:
            settle = asked.topic_answer.set_exception if isinstance(first, Exception) else None
            (settle or asked.topic_answer.set_result)(first)
            assert ends.error_of(8.0, ONE, 3) is None
            asked.topic_answer = Future()
            ends.poll(14.0, [ONE])
        asked.topic_answer.set_exception(TopicMissing("t"))
        assert isinstance(ends.error_of(14.0, ONE, 3), TopicMissing)
        assert ends.error_of(14.0, ONE, 3) is None
    assert asked.topic.call_args_list == [call("t")] * (1 if first is None else 2)
    assert [each["event"] for each in logs] == ["end_not_known"]


def test_silent_partitions_have_a_question_of_their_own(asked):
    """Promise 10: an answer about them takes seconds to come, and the others need theirs."""
    spare = Asked()
    ends = LogEndTracker(asked, 0.2, lambda: spare)
    ends.poll(0.0, [ONE, TWO])
    assert [names for names, _future in asked.questions] == [{ONE, TWO}]
    asked.answer({ONE: 5})
    assert not spare.open.called
    assert ends.poll(10.0, [ONE, TWO])
    for second in range(11, 15):
        asked.answer({ONE: second})
        assert ends.poll(float(second), [ONE, TWO])
    assert [names for names, _future in asked.questions[1:]] == [{ONE}] * 5
    assert [names for names, _future in spare.questions] == [{TWO}]
    assert spare.open.called
    assert (ends.is_unreachable(TWO), ends.is_answered(TWO)) == (True, True)
    spare.fail(KafkaUnavailable("for the ends of the logs", "no leader"))
    assert ends.poll(20.0, [ONE, TWO])
    assert (ends.available, ends.is_unreachable(TWO), len(spare.questions)) == (True, True, 2)
    spare.answer({TWO: 7})
    assert ends.poll(30.0, [ONE, TWO])
    assert (ends.end_of(TWO), ends.is_unreachable(TWO)) == (LogEnd(7, 0), False)
    asked.answer({ONE: 20})
    ends.poll(31.0, [ONE, TWO])
    assert asked.questions[-1][0] == {ONE, TWO}
    spare.questions.clear()
    ends.close()
    ends.close()
    assert (spare.open.call_count, spare.close.call_count) == (1, 1)


def test_no_answer_leaves_what_was_known_and_shows(asked, ends):
    """Promise 15; but a permanent error is raised."""
    ends.poll(0.0, [ONE])
    asked.answer({ONE: 5})
    ends.poll(1.0, [ONE])
    asked.fail(KafkaUnavailable("for the ends", "away"))
    assert not ends.poll(2.0, [ONE])
    assert (ends.end_of(ONE), ends.available) == (LogEnd(5, 0), False)
    asked.answer({ONE: 6})
    assert ends.poll(3.0, [ONE])
    assert (ends.end_of(ONE), ends.available) == (LogEnd(6, 0), True)
    asked.fail(KafkaFailed("no rights"))
    with pytest.raises(KafkaFailed):
        ends.poll(4.0, [ONE])


def test_answer_about_a_forgotten_partition_is_dropped(asked, ends):
    ends.poll(0.0, [ONE, TWO])
    ends.remove([ONE])
    asked.answer({ONE: 1000, TWO: 3})
    ends.poll(1.0, [ONE, TWO])
    assert (ends.end_of(ONE), ends.end_of(TWO)) == (None, LogEnd(3, 0))


@pytest.mark.parametrize("mirrors", [False, True])
def test_driver_has_a_client_only_to_mirror_offsets(tmp_path, monkeypatch, mirrors):
    drives, heard = Driving(tmp_path, partitions=1, mirror=mirrors), list[Any]()
    for name in ("open", "add", "fetch", "mirror", "close"):
        note = partial(lambda called, *given: heard.append((called, *given)), name)
        monkeypatch.setattr(drives.fetcher, name, note)
    with drives:
        drives.fill(1)
        drives.finish()
        drives.until(lambda: drives.reader.offsets.is_done)
    called = [name for name, *_given in heard]
    assert (called[0], called[-1]) == ("open", "close")
    assert set(called[1:-1]) == ({"fetch", "mirror"} if mirrors else {"close"})
    mirrored = [given[0][ONE].offset for name, *given in heard if name == "mirror"]
    assert mirrored[-1:] == ([1] if mirrors else [])
