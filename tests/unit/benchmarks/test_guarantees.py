"""Suite guarantees: exactly once is held against at least once."""

import json

import pytest

from benchmarks import guarantees
from benchmarks.guarantees_variants import VARIANTS

RATES = {"at_least_once": 500.0, "exactly_once": 420.0}


def test_every_variant_of_the_suite_is_there():
    assert list(VARIANTS) == list(guarantees.VARIANTS) == list(RATES)


def test_exactly_once_is_held_against_at_least_once(fake_bench):
    facts = guarantees.run(fake_bench(RATES)).json
    assert facts["suite"] == "guarantees"
    assert facts["exactly_once_cost"] == 0.16
    assert facts["ratio"] == {"exactly_once": 0.84}
    assert [goal["met"] for goal in facts["goals"].values()] == [False]
    json.dumps(facts)


def test_variants_that_make_other_rows_end_the_suite(fake_bench):
    with pytest.raises(SystemExit, match="do not make the same rows"):
        guarantees.run(fake_bench(RATES, odd="exactly_once"))
