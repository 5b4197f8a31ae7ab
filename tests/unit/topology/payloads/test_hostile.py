"""Every JSON decoder decides alike: the table in docs/reference/values.md, and a property."""

from pathlib import Path
from typing import NotRequired, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Topology, bolt, payloads
from headrace.sinks import KafkaDeadLetters, MemorySink
from headrace.testing import topology_test
from sinks.columns import fit
from tests.support.bolts import columns
from topology.payloads.documents import Limits, json
from topology.payloads.json_columns import json_columns
from topology.record import HeldMessage, Record, Reject
from topology.schema import schema_of
from topology.vectorised import call_columns, columns_of, columns_of_values

VALUES = Path(__file__).parents[4] / "docs" / "reference" / "values.md"
TYPES = {kind: TypedDict("Row", {"v": kind}) for kind in (int, float, str)}
GOOD = {int: (b'{"v":7}', 7), float: (b'{"v":7.5}', 7.5), str: (b'{"v":"x"}', "x")}
INTERNAL = ("parse error", "Python int", "codec", "C long", "Arrow", "convert", "malformed")
NOTHING = object()


@bolt
def only_v(document: dict[str, object]) -> dict[str, object]:
    return {"v": document.get("v")}


DECODERS = {
    "json()": lambda _: [payloads.json(), only_v],
    "json() and columns": lambda _: [payloads.json(), only_v, columns],
    "json(T)": lambda kind: [payloads.json(kind)],
    "json(T) and columns": lambda kind: [payloads.json(kind), columns],
    "json_columns(T)": lambda kind: [payloads.json_columns(kind)],
}


def decisions():
    """The rows of the table: the payload, what each type's column gets, and the reason."""
    lines = VALUES.read_text().split("## Hostile JSON")[1].split("\n## ")[0].splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    for payload, *cells, reason in table:
        if payload != "payload" and not payload.startswith("`payload"):
            values = [NOTHING if cell == "-" else evaluated(cell) for cell in cells]
            yield evaluated(payload), dict(zip((int, float, str), values, strict=True)), reason


def evaluated(cell):
    return eval(cell.strip("`"), {})  # noqa: S307 - an expression of our own page


DECISIONS = list(decisions())


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("decoder", DECODERS)
def test_decoder_decides_as_the_table_says(decoder, kind):
    topology = Topology("hostile")
    stream = topology.source("hostile")
    for step in DECODERS[decoder](TYPES[kind]):
        stream = stream.then(step)
    stream.into(MemorySink("rows", schema=TYPES[kind]))
    topology.dead_letters.into(KafkaDeadLetters("dead"))
    good, neighbour = GOOD[kind]
    expected, reasons = [neighbour], {}
    for place, (_, values, reason) in enumerate(DECISIONS):
        if values[kind] is NOTHING:
            reasons[2 * place + 1] = reason
        else:
            expected.append(values[kind])
        expected.append(neighbour)
    with topology_test(topology) as kit:
        kit.send(good, *(each for payload, *_ in DECISIONS for each in (payload, good)))
        assert [kind(row["v"]) for row in kit.rows] == expected
        found = {letter.record.offset: letter.reason for letter in kit.rejected}
    assert sorted(found) == sorted(reasons)
    for offset, reason in reasons.items():
        assert not any(words in found[offset] for words in INTERNAL), found[offset]
        if reason == "the type":
            assert (
                "`$.v`" in found[offset] or "column 'v'" in found[offset] or "`v`" in found[offset]
            )
        elif reason != "a number out of range":
            assert reason in found[offset]


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"1e99999"])
def test_unread_number_out_of_range_is_passed_over(number):
    (found,) = outcomes(TYPES[int], [b'{"v":1,"w":' + number + b"}"])
    assert found == [[{"v": 1}]] * 5


class Inner(TypedDict):
    a: int
    b: NotRequired[str | None]


class Optional(TypedDict):
    v: NotRequired[int | None]


SHAPES = [
    *TYPES.values(),
    TypedDict("Flag", {"v": bool}),
    TypedDict("Floats", {"v": list[float]}),
    TypedDict("Nested", {"v": Inner}),
    Optional,
]
LIMITS = Limits(max_bytes=500, max_depth=6, max_number_digits=50)


def outcomes(kind, values):
    """What each decoder makes of each value: the row as its column has it, or None."""
    schema = schema_of(kind)
    messages = [HeldMessage(value, None, "in", 0, 0, (0, 0), None) for value in values]
    columns = [in_columns(kind, messages, schema, line_breaks) for line_breaks in (True, False)]
    found = []
    for place, value in enumerate(values):
        plain = called(json(limits=LIMITS), value)
        row = None if plain is None else only_v.function(plain)
        made = None if row is None else columns_of_values([row])
        typed = called(json(kind, limits=LIMITS), value)
        found.append(
            [
                None if row is None else fitted([row], schema),
                fitted(made.batches[0][0], schema) if made and made.batches else None,
                None if typed is None else fitted([typed], schema),
                *(rows[place] for rows in columns),
            ]
        )
    return found


def called(decoder, value):
    try:
        return decoder(Record(value, None))
    except Reject:
        return None


def fitted(piece, schema):
    fit_ = fit([piece], schema)
    return None if fit_.rejected else fit_.table.to_pylist()


def in_columns(kind, messages, schema, line_breaks):
    batch = columns_of(messages, ["value"], line_breaks=line_breaks)
    outcome = call_columns("json", json_columns(kind, limits=LIMITS).function, batch)
    assert all(isinstance(error, Reject) for error in outcome.failures.values())
    rows = [None] * len(messages)
    for sent in outcome.sent.values():
        parents = range(len(messages)) if sent.parents is None else sent.parents.tolist()
        for place, parent in enumerate(parents):
            rows[parent] = fitted(sent.piece.slice(place, 1), schema)
    return rows


ATOMS = (
    [b"1", b"0", b"-0", b"-0.0", b"1.0", b"1e5", b"1.5", b"1E+2", b"1.", b".5", b"01", b"+1", b"-"]
    + [
        b"%d" % (sign * 2**power + by)
        for sign in (1, -1)
        for power in (53, 63, 64)
        for by in (-1, 0, 1)
    ]
    + [b"9007199254740991.0", b"9007199254740992.0", b"1e-400", b"1e308", b"1e16", b"1" * 51]
    + [b"1e309", b"-1e400", b"1e99999", b"1e99999999999999999999999", b"-1" + b"0" * 49 + b"e300"]
    + [b"NaN", b"Inf", b"Infinity", b"-Infinity", b"true", b"null", b"tru", b'"a"', b'"NaN"']
    + [b'" NaN"', b'"\\ud800"', b'"\\udc00"', b'"\\ud83d\\ude00"', b'"\\ud83d\\\\ude00"']
    + [b'"\\\\ud800"', b'"\\u0000"', b'"\0"', b'"\x1f"', b'"\n"', b'"\xff"', b'"\xed\xa0\x80"']
    + ['"é\u2028"'.encode(), b'"\\x"', b'"\\/"', b'"[[[[[[[[["', b"[1]", b"[1.0,2]", b"[null]"]
    + [b"[]", b"{}", b'{"a":1}', b'{"a":1.0,"b":"x"}', b'{"a":1,"a":2}', b'{"a":1,"c":NaN}']
    + [b'{"a":1,"b":null}', b'{"b":"x"}', b"[9007199254740993]", b"[[[[[[1]]]]]]"]
)
KEYS = [b'"v"', b'"v"', b'"v"', b'"w"', b'"\\u0076"', b'"\\ud800"', b'""', b'"V"', b'"\xff"', b"v"]
MEMBERS = st.tuples(st.sampled_from(KEYS), st.sampled_from([b":", b" : "]), st.sampled_from(ATOMS))
TEXTS = st.tuples(
    st.sampled_from([b"", b"", b"", b"", b" ", b"\xef\xbb\xbf", b"\0", b"["]),
    st.lists(MEMBERS.map(b"".join), min_size=1, max_size=3).map(
        lambda all_: b"{" + b",".join(all_) + b"}"
    ),
    st.sampled_from([b"", b"", b"", b"", b"\n", b"}", b'{"v":1}', b"\0", b","]),
).map(b"".join)


@settings(max_examples=300)
@given(st.sampled_from(SHAPES), st.lists(TEXTS | st.binary(max_size=12), min_size=1, max_size=4))
def test_all_decoders_make_the_same_row_or_none(kind, values):
    for value, found in zip(values, outcomes(kind, values), strict=True):
        assert all(each == found[0] for each in found), (value, found)
