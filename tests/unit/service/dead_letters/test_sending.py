"""What became of letters when Kafka refuses, does not answer, or somebody else is at it.

Sending itself is tested on a real broker.
"""

from collections.abc import Sequence

import pytest

from service.dead_letters.errors import AnotherAtWork
from service.dead_letters.judging import judge_drop
from service.dead_letters.marks import Marks
from service.dead_letters.planning import View
from service.dead_letters.sending import Sender, Who
from service.dead_letters.topic import LetterTopic
from sinks.kafka.client import NotAccepted, OutcomeUnknown, ProducerFenced
from tests.worlds.letters import letter

WHO = Who("me@host", 1_700_000_000_000, "rubbish")
VIEW = View(LetterTopic("orders.dead", {}), {}, Marks())


class Answers:
    """Commits, or raises what it was given; one answer for each transaction."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.said: list[list[bytes | None]] = []

    def commit(self, messages, then) -> None:
        self.said.append([message.value for message in then([])])
        error = self.answers.pop(0)
        if error is not None:
            raise error


def rows(*offsets: int) -> Sequence:
    return [judge_drop(letter(at=at, offset=at), ()) for at in offsets]


def test_letters_are_marked_together():
    answers = Answers(None)
    found = Sender(VIEW, answers, WHO).drop(rows(1, 2))
    assert [row.outcome for row in found] == ["dropped", "dropped"]
    (said,) = answers.said
    assert said[0] == (
        b'{"letter":1,"kind":"dropped","at_ms":1700000000000,"by":"me@host","why":"rubbish"}'
    )


def test_of_letters_of_which_one_is_not_taken_the_others_go_alone():
    answers = Answers(NotAccepted("too large"), None, NotAccepted("too large"), None)
    found = Sender(VIEW, answers, WHO).drop(rows(1, 2, 3))
    assert [row.outcome for row in found] == ["dropped", "failed", "dropped"]
    assert found[1].note == "Kafka refuses it: too large"


def test_where_no_answer_came_it_is_said_that_nobody_knows():
    (row,) = Sender(VIEW, Answers(OutcomeUnknown("timed out")), WHO).drop(rows(1))
    assert row.outcome == "failed"
    assert "whether it was done, `headrace dead-letters list --all` says" in row.note


def test_whoever_is_superseded_stops():
    with pytest.raises(AnotherAtWork, match="0 letters were dealt with here before"):
        Sender(VIEW, Answers(ProducerFenced("fenced")), WHO).drop(rows(1))
