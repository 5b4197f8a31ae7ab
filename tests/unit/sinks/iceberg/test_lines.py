import pytest

from sinks.spark.iceberg.lines import committed_of, property_of, value_of
from topology.errors import SinkFailed
from topology.transactional import Committed


def test_a_line_is_read_as_it_was_written() -> None:
    name = property_of("flights", "lake/flights", "orders[3]")
    assert name == "headrace/flights/lake/flights/orders[3]"
    properties = {name: value_of(2**40, 2**33), "owner": "x"}
    lines = ["orders[3]", "orders[4]"]
    assert committed_of(lines, [name, "other"], properties) == [
        Committed("orders[3]", 2**40, 2**33),
        Committed("orders[4]", 0, 0),
    ]


@pytest.mark.parametrize("value", ["", "1", "1:", "a:1", "1:2:3", "-1:2", "1:2 ", "\u0661:\u0662"])
def test_a_value_that_is_none_of_ours_is_refused(value: str) -> None:
    with pytest.raises(SinkFailed, match="table property 'p': found"):
        committed_of(["l"], ["p"], {"p": value})
