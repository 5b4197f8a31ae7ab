"""Avro schemas whose values may contain themselves are found wherever the cycle is."""

import pytest

from topology.payloads.registry.recursion import CycleCheck, cycle_in
from topology.record import Reject


def record(name, *types):
    fields = [{"name": f"f{place}", "type": kind} for place, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


INNER = record("x.B", "string", {"type": "int", "logicalType": "date"})


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ("string", None),
        (["null", "long"], None),
        (record("A", "long", ["null", "string"], {"type": "array", "items": "string"}), None),
        (record("A", INNER, "x.B", ["null", "x.B"]), None),  # twice is not within itself
        (record("A", {"type": "enum", "name": "E", "symbols": ["A"]}, "E"), None),
        (record("A", {"type": {"type": "map", "values": "long"}}), None),
        (record("A", "A"), "A"),
        (record("A", ["null", "A"]), "A"),
        (record("A", {"type": "array", "items": "A"}), "A"),
        (record("A", {"type": "map", "values": ["null", "A"]}), "A"),
        (record("A", record("B", {"type": "array", "items": ["null", "A"]})), "A"),
        (record("A", INNER, record("C", ["null", "C"])), "C"),
        ([INNER, record("A", ["null", "A"])], "A"),
    ],
)
def test_a_cycle_is_found_and_nothing_else(schema, name):
    assert cycle_in(schema) == name


def test_a_schema_is_walked_once_and_refused_each_time(monkeypatch):
    check, bad = CycleCheck(), record("A", ["null", "A"])
    for _ in range(2):
        with pytest.raises(Reject, match="'A' of the schema may contain itself"):
            check(bad)
    check(INNER)
    monkeypatch.setattr("topology.payloads.registry.recursion.cycle_in", None)  # not called
    check(INNER)
