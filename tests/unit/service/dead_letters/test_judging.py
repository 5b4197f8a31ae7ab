"""Which letters may be sent again or dropped, and why not."""

import pytest

from service.dead_letters.judging import Wish, in_words, judge_drop, judge_replay, without_twins
from service.dead_letters.letter import Place, sent_again
from service.dead_letters.marks import Mark, Marks, encode
from tests.worlds.letters import Written, letter

TOPICS = {"orders": (0, 1, 2, 3), "elsewhere": (0,), "small": (0, 1)}
SENT = Mark(17, "replayed", 1_700_000_000_000, "me@host", "mended", "orders[3]@99")
DROPPED = Mark(17, "dropped", 1_700_000_000_000, "me@host", "rubbish")


def test_a_letter_goes_back_to_the_partition_that_it_came_from():
    row = judge_replay(letter(), (), Wish(), TOPICS)
    assert (row.outcome, str(row.target), row.earlier) == ("to_replay", "orders[3]", 0)
    assert row.letter.content is None


def test_into_another_topic_the_key_decides():
    row = judge_replay(letter(), (), Wish(to="elsewhere"), TOPICS)
    assert (row.outcome, str(row.target)) == ("to_replay", "elsewhere")


def test_a_record_that_is_sent_again_without_its_headers_is_told():
    row = judge_replay(letter(headers_error="no UTF-8"), (), Wish(), TOPICS)
    assert row.note == "without its headers: no UTF-8"
    assert row.become("replayed", to="orders[3]@99").note == row.note


@pytest.mark.parametrize("mark", [SENT, DROPPED])
def test_a_letter_that_is_dealt_with_is_refused_and_its_mark_told(mark):
    row = judge_replay(letter(), (mark,), Wish(), TOPICS)
    assert row.outcome == "refused"
    assert row.note == f"{in_words(mark)}; --again replays it all the same"
    assert judge_drop(letter(), (mark,)).outcome == "refused"


def test_a_letter_that_was_dropped_may_be_sent_again_if_it_is_asked_for():
    assert judge_replay(letter(), (DROPPED,), Wish(again=True), TOPICS).outcome == "to_replay"


def test_a_record_does_not_go_round_in_circles():
    first = letter()
    assert first.content is not None
    back = letter(sent_again(first, first.content, earlier=0, source="d", at_ms=1), offset=99)
    row = judge_replay(back, (), Wish(), TOPICS)
    assert row.outcome == "refused"
    assert "was replayed once already, and --max-replays is 1" in row.note
    assert "--max-replays 2 replays it once more" in row.note
    once_more = judge_replay(back, (), Wish(max_replays=2), TOPICS)
    assert (once_more.outcome, once_more.earlier) == ("to_replay", 1)


def test_a_letter_sent_twice_from_its_own_place_counts_as_well():
    row = judge_replay(letter(), (SENT, SENT), Wish(max_replays=2, again=True), TOPICS)
    assert row.outcome == "refused"
    assert "was replayed 2 times already" in row.note


@pytest.mark.parametrize(
    ("topic", "said"),
    [("gone", "topic 'gone' does not exist"), ("small", "small[3] does not exist; the topic has")],
)
def test_where_there_is_no_such_partition_any_more_nothing_is_sent(topic, said):
    row = judge_replay(letter(topic=topic), (), Wish(), TOPICS)
    assert row.outcome == "refused"
    assert said in row.note
    assert "--to" in row.note


def test_two_letters_of_one_reading_send_their_record_once():
    rows = [judge_replay(letter(at=at), (), Wish(), TOPICS) for at in (17, 18)]
    (row,) = without_twins(rows)
    assert row.letter.place == Place(2, 17)
    assert row.twins == (Place(2, 18),)


def test_letters_of_other_readings_or_that_are_refused_are_no_twins():
    rows = [
        judge_replay(letter(at=17), (), Wish(), TOPICS),
        judge_replay(letter(at=18, offset=43), (), Wish(), TOPICS),
        judge_replay(letter(at=19), (SENT,), Wish(), TOPICS),
    ]
    assert without_twins(rows) == rows


def test_a_mark_stands_behind_its_letter_and_says_who_and_why():
    value, headers = encode(SENT)
    marks = Marks()
    assert marks.take(Written(headers, content=value, at=30))
    assert marks.of(Place(2, 17)) == (SENT,)
    assert marks.of(Place(1, 17)) == ()
    assert in_words(SENT) == ("replayed as orders[3]@99 on 2023-11-14 22:13:20 by me@host: mended")


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[" * 20_000, b'{"letter": 99}', b"\xff"])
def test_a_mark_that_nobody_could_have_made_says_nothing(value):
    marks = Marks()
    _, headers = encode(SENT)
    assert marks.take(Written(headers, content=value, at=30))
    assert marks.of(Place(2, 17)) == ()
    assert marks.of(Place(2, 99)) == ()


def test_a_record_cannot_make_itself_a_mark():
    value, headers = encode(SENT)
    found = letter(headers)
    assert not Marks().take(Written([*headers, *((n, b"1") for n in ("headrace.topic",))], value))
    assert found.read.offset == 42
