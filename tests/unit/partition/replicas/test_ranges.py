"""Partitions as text, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.records import Partition
from partition.replicas.plan import (
    MAX_COUNT,
    MAX_NUMBER,
    by_topic,
    decode_numbers,
    encode_numbers,
    from_topics,
)

NUMBERS = st.one_of(st.integers(0, 30), st.integers(0, MAX_NUMBER))
PARTITIONS = st.builds(Partition, st.sampled_from(["a", "b.c", "d-e"]), NUMBERS)


@given(st.lists(NUMBERS, max_size=40))
def test_what_is_written_is_read(numbers):
    assert decode_numbers(encode_numbers(numbers)) == sorted(set(numbers))


@given(st.sets(PARTITIONS, max_size=40))
def test_partitions_are_written_by_topic_and_read(partitions):
    written = by_topic(partitions)
    assert from_topics(written) == partitions
    assert list(written) == sorted(written)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        " 1",
        "1, 2",
        "1,",
        ",1",
        "-1",
        "1-",
        "01",
        "1_0",
        "٣",
        "3-1",
        "1-1",
        "2,1",
        "1,1",
        "0-3,3",
        "0-3,2-5",
        "2147483648",
        "0-2147483648",
        "99999999999",
        "1\n",
    ],
)
def test_a_text_that_is_no_ascending_ranges_is_refused(text):
    with pytest.raises(ValueError, match=r'ascending ranges as in "0-3,7"'):
        decode_numbers(text)


def test_a_text_that_would_fill_the_memory_is_refused():
    """One short line of a corrupt node would otherwise become billions of numbers."""
    assert len(decode_numbers(f"0-{MAX_COUNT - 1}")) == MAX_COUNT
    for text in (f"0-{MAX_COUNT}", "0-2147483647", f"0,2-{MAX_COUNT + 1}"):
        with pytest.raises(ValueError, match="too many numbers"):
            decode_numbers(text)


@pytest.mark.parametrize("number", [-1, MAX_NUMBER + 1])
def test_a_number_that_could_not_be_read_is_not_written(number):
    with pytest.raises(ValueError, match=f"number {number}; 0 to {MAX_NUMBER}"):
        encode_numbers([number, 5])


def test_more_numbers_than_can_be_read_are_not_written():
    with pytest.raises(ValueError, match="at most"):
        encode_numbers(range(MAX_COUNT + 1))
