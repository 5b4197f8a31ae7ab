import pytest

from service.dead_letters import stored
from tests.support.dead_letters import dead_letter, facts, stored_message

SENT = stored.Mark(17, "replayed", 1_700_000_000_000, "me@host", "mended", "orders[3]@99")


def replayed(letter, earlier=0):
    how = {"earlier": earlier, "source": "orders.dead", "at_ms": 5}
    return stored.headers_to_send(letter, letter.content, **how)


def test_dead_letter_has_origin_and_reason():
    found = dead_letter([("trace", b"\x00")])
    assert found.id == stored.DeadLetterId(2, 17)
    assert found.read == found.origin == stored.RecordOrigin("orders", 3, 42, 1_700_000_000_000)
    assert (found.reason, found.step, found.attempts) == ("not JSON", "parse", 3)
    assert (found.error_class, found.pipeline, found.replays) == ("ValueError", "orders", 0)
    assert found.content == stored.RecordContent(b"AA", b"{broken", (("trace", b"\x00"),))
    assert (found.bare().content, found.value_bytes) == (None, 7)
    assert (found.value_digest, found.key_digest, found.error_at) == (None, None, None)
    assert dead_letter(error_at="flow.py:7").error_at == "flow.py:7"


def test_forged_headers_of_a_record_are_ignored():
    forged = [("headrace.topic", b"forged"), ("headrace.offset", b"7"), ("headrace.step", b"me")]
    found = dead_letter(forged)
    assert (found.read.topic, found.read.offset, found.step) == ("orders", 42, "parse")


def test_replayed_record_keeps_its_first_origin():
    first = dead_letter([("trace", b"1")])
    assert dict(replayed(first))["headrace.replayed_from"] == b"orders.dead:2:17"
    second = dead_letter(replayed(first), offset=99)
    assert (second.origin, second.read.offset, second.replays) == (first.read, 99, 1)
    assert second.content == first.content
    third = dead_letter(replayed(second, earlier=1), offset=120)
    assert (third.origin, third.replays) == (first.read, 2)


@pytest.mark.parametrize("missing", ["origin.topic", "origin.offset", "replays"])
def test_incomplete_history_is_ignored(missing):
    headers = replayed(dead_letter(), earlier=3)
    found = dead_letter([each for each in headers if each[0] != f"headrace.{missing}"], offset=99)
    assert (found.origin, found.replays) == (found.read, 0)


def test_omitted_value_and_key_are_known_by_digest():
    left_out = {"value_size": 9, "value_sha256": "ab" * 32, "key_size": 3, "key_sha256": "cd" * 32}
    found = dead_letter(**left_out)
    assert (found.value_digest, found.key_digest) == ((9, "ab" * 32), (3, "cd" * 32))


@pytest.mark.parametrize("wrong", ["", "x", "-5", "1" * 30, "4\n"])
def test_invalid_number_in_a_header_is_named(wrong):
    found = stored.read_message(stored_message(facts(offset=wrong)))
    assert isinstance(found, stored.ForeignMessage)
    assert "'headrace.offset'" in found.reason


def test_mark_says_who_and_why():
    value, headers = stored.encode_mark(SENT)
    marks = stored.collect_marks([stored_message(headers, content=value, at=30)])
    assert marks == {stored.DeadLetterId(2, 17): [SENT]}
    assert str(SENT) == "replayed as orders[3]@99 on 2023-11-14 22:13:20 by me@host: mended"


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[" * 20_000, b'{"letter": 99}', b"\xff"])
def test_invalid_mark_is_ignored(value):
    _, headers = stored.encode_mark(SENT)
    assert stored.collect_marks([stored_message(headers, content=value, at=30)]) == {}


def test_record_cannot_make_itself_a_mark():
    value, headers = stored.encode_mark(SENT)
    assert not stored.is_mark(stored_message([*headers, ("headrace.topic", b"1")], value))
    assert dead_letter(headers).read.offset == 42
