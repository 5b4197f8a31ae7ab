import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.dead_letters.printable import cut, header_text, value_lines
from topology.masking import escaped


@given(st.text() | st.binary().map(lambda each: each.decode(errors="surrogateescape")))
def test_text_is_printable_and_short(text):
    assert escaped(text).isprintable()
    assert escaped(text) == text or not text.isprintable()
    assert cut(text, 20).isprintable()
    assert len(cut(text, 20)) <= 20


def test_json_is_indented_with_its_own_numbers():
    lines = value_lines(b'{"a":1.50,"b":[12345678901234567890]}', 1_000)
    assert lines[:2] == ["{", '  "a": 1.50,']
    assert "12345678901234567890" in "".join(lines)


def test_bytes_are_dumped():
    (line,) = value_lines(b"\x00\x01ab", 1_000)
    assert line.startswith("00000000  00 01 61 62 ")
    assert line.endswith(" ..ab")
    assert (header_text(b"\x00\xff"), header_text(None)) == ("0x00ff", "(null)")


@pytest.mark.parametrize("value", [b"x" * 5_000, b"\x00" * 5_000])
def test_long_value_is_cut(value):
    last = value_lines(value, 2_000)[-1]
    assert "3,000 more" in last
    assert "--value-only prints all of it" in last
