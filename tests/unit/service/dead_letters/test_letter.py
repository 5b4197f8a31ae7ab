"""What a message of the dead-letter topic is, and the headers with which its record goes again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.dead_letters.letter import (
    Content,
    Letter,
    Notice,
    Origin,
    Other,
    Place,
    read_message,
    sent_again,
)
from tests.worlds.letters import Written, facts, letter

ANY_HEADERS = st.none() | st.lists(
    st.tuples(
        st.sampled_from([name for name, _ in facts()])
        | st.sampled_from(["headrace.replays", "headrace.origin.topic", "trace"]),
        st.none() | st.binary(max_size=40) | st.integers(-9, 99).map(lambda n: str(n).encode()),
    ),
    max_size=20,
)


def test_a_letter_says_where_its_record_was_read_and_why_it_failed():
    found = letter([("trace", b"\x00")])
    assert found.place == Place(2, 17)
    assert found.read == found.origin == Origin("orders", 3, 42, 1_700_000_000_000)
    assert (found.reason, found.step, found.attempts) == ("not JSON", "parse", 3)
    assert (found.error_class, found.pipeline, found.replays) == ("ValueError", "orders", 0)
    assert found.content == Content(b"AA", b"{broken", (("trace", b"\x00"),))
    assert found.bare().content is None
    assert found.value_bytes == 7


def test_what_a_record_says_of_itself_is_never_taken_for_the_sinks_word():
    forged = [("headrace.topic", b"forged"), ("headrace.offset", b"7"), ("headrace.step", b"me")]
    found = letter(forged)
    assert found.read.topic == "orders"
    assert found.read.offset == 42
    assert found.step == "parse"


def test_a_record_that_failed_again_keeps_its_first_origin_and_how_often_it_was_sent():
    first = letter([("trace", b"1")])
    assert first.content is not None
    again = sent_again(first, first.content, earlier=0, source="orders.dead", at_ms=5)
    second = letter(again, offset=99)
    assert second.origin == first.read
    assert second.read.offset == 99
    assert second.replays == 1
    assert second.content == first.content
    assert dict(again)["headrace.replayed_from"] == b"orders.dead:2:17"
    third = letter(sent_again(second, first.content, earlier=1, source="x", at_ms=6), offset=120)
    assert third.origin == first.read
    assert third.replays == 2


@pytest.mark.parametrize("missing", ["origin.topic", "origin.offset", "replays"])
def test_half_a_history_is_none(missing):
    first = letter()
    assert first.content is not None
    headers = sent_again(first, first.content, earlier=3, source="orders.dead", at_ms=5)
    found = letter([each for each in headers if each[0] != f"headrace.{missing}"], offset=99)
    assert found.origin == found.read
    assert found.replays == 0


def test_a_value_that_was_left_out_is_known_by_its_size_and_sum():
    found = letter(value_size=9_000_000, value_sha256="ab" * 32)
    assert found.reference is not None
    assert (found.reference.size, found.reference.sha256) == (9_000_000, "ab" * 32)


def test_a_key_that_was_left_out_is_known_by_its_size_and_sum():
    left_out = {"key_size": 3_000, "key_sha256": "cd" * 32}
    found = letter(value_size=0, value_sha256="ab" * 32, **left_out)
    assert found.key_reference == (3_000, "cd" * 32)
    assert letter().key_reference is None


@pytest.mark.parametrize("own", [None, [], [("trace", b"1")]])
def test_what_the_sink_has_not_written_is_no_letter(own):
    found = read_message(Written(own))
    assert isinstance(found, Other)
    assert "it has no header 'headrace.topic'" in found.reason


@pytest.mark.parametrize("wrong", ["", "x", "-5", "1" * 30, "4\n"])
def test_a_header_that_should_be_a_number_is_named(wrong):
    found = read_message(Written(facts(offset=wrong)))
    assert isinstance(found, Other)
    assert "'headrace.offset'" in found.reason


def test_a_notice_is_no_letter():
    found = read_message(Written([*facts(noticed_at_ms=7)], content=None))
    assert found == Notice(Place(2, 17))


@given(ANY_HEADERS, st.none() | st.binary(max_size=20))
def test_whatever_stands_in_a_topic_is_read_without_an_error(headers, value):
    found = read_message(Written(headers, content=value))
    assert isinstance(found, (Letter, Notice, Other))
