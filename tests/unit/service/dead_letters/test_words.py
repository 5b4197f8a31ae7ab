"""What stands in messages, shown to a person."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.dead_letters.words import cut, header_text, value_lines
from service.printing import escaped


@given(st.text() | st.binary().map(lambda each: each.decode(errors="surrogateescape")))
def test_nothing_that_steers_a_terminal_is_printed(text):
    assert escaped(text).isprintable()
    assert cut(text, 20).isprintable()
    assert len(cut(text, 20)) <= 20


@given(st.binary(max_size=300), st.integers(0, 100))
def test_every_value_is_shown_in_lines_that_print(value, most):
    assert all(line.isprintable() for line in value_lines(value, most))
    assert header_text(value).isprintable()


def test_an_escape_sequence_is_shown_and_not_obeyed():
    assert escaped("\x1b[2J gone\u202e") == "\\x1b[2J gone\\u202e"


def test_json_is_laid_out_with_its_numbers_as_they_are():
    lines = value_lines(b'{"a":1.50,"b":[12345678901234567890]}', 1_000)
    assert lines[0] == "{"
    assert '  "a": 1.50,' in lines
    assert "12345678901234567890" in "".join(lines)


def test_bytes_are_dumped():
    (line,) = value_lines(b"\x00\x01ab", 1_000)
    assert line.startswith("00000000  00 01 61 62 ")
    assert line.endswith(" ..ab")
    assert header_text(b"\x00\xff") == "0x00ff"
    assert header_text(None) == "(null)"


@pytest.mark.parametrize("value", [b"x" * 5_000, b"\x00" * 5_000])
def test_what_is_left_out_is_told(value):
    assert "--value-only prints all of it" in value_lines(value, 2_000)[-1]
    assert "3,000 more" in value_lines(value, 2_000)[-1]
