"""Ratios are to the other variant's run of the same round."""

import pytest

from benchmarks.comparison import Comparison


def runs(*rates):
    made = {"rows": 1, "order_ids": 1, "cents": 1, "batches": 1}
    return [{**made, "per_second": rate, "cpu_us": 100 / rate} for rate in rates]


def test_a_slow_hour_of_the_machine_is_in_both_of_a_pair():
    found = Comparison({"ours": runs(60, 30, 50), "theirs": runs(10, 5, 10)}, {"ours": "theirs"})
    assert found.ratio == {"ours": 6.0}
    assert found.spread == {"ours": [5.0, 6.0]}
    assert found.cpu_ratio == {"ours": pytest.approx(1 / 6)}
    assert found.facts["per_second"] == {"ours": 50, "theirs": 10}
