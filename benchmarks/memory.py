"""Suite memory: whether memory stays flat over many records, and bytes per pending record."""

from benchmarks.bench import Bench, medians, opened
from benchmarks.memory_variants import THIRDS, mark
from benchmarks.result import Goal, Result, Table

RECORDS = 10_000_000
WINDOW = 1_000_000
TOPIC = "numbers"
MODULE = "benchmarks.memory_variants"
FLAT = ("noop", "functions")
PENDING = ("behind", "unresolved")
MOST_GROWTH = 1.02  # of the median of the last third of the records, to the third before
_SMALLER = 5  # how much smaller the window is that the large one is held against
NOTES = """\
Records are JSON of about 13 bytes, the configuration is the default one. Resident memory is looked
at thirty times; growth is the median of the last third of the looks to that of the third before,
for in the first the client's queues and the allocators' pools fill. A pending record's
bytes are the resident memory that a window of a million takes more than one of a fifth, divided
by the records it has more: payload, librdkafka's and Python's message, offset, state, and for
`unresolved` the row in the batch, tree and edge. `behind` is a window of records that are done,
behind one that is not."""


def value(number: int) -> bytes:
    """A small record."""
    return b'{"n":%d}' % number


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or 1
    records = bench.options.records or RECORDS
    large = min(WINDOW, records)
    bench.publish(TOPIC, value, records)
    flat = bench.rounds(MODULE, FLAT, TOPIC, records, rounds=rounds)
    figures = {name: medians(found) for name, found in flat.items()}
    held = {}
    for window in (large // _SMALLER, large):
        topic = f"{TOPIC}-{window}"
        bench.publish(topic, value, window, partitions=1)
        runs = bench.rounds(MODULE, PENDING, topic, window, rounds=rounds)
        held[window] = {name: medians(found) for name, found in runs.items()}
    per_record = {name: _slope(held, name, "held_mb") * 1e6 for name in PENDING}
    payload = {name: _slope(held, name, "payload_bytes") for name in PENDING}
    growth = {name: found[mark("last")] / found[mark("middle")] for name, found in figures.items()}
    flat_rows = [
        (
            name,
            *(f"{found[mark(third)]:,.0f}" for third in THIRDS),
            f"{growth[name]:.3f}",
            f"{found['per_second']:,.0f}",
        )
        for name, found in figures.items()
    ]
    pending_rows = [
        (name, f"{bytes_each:,.0f}", f"{payload[name]:.0f}")
        for name, bytes_each in per_record.items()
    ]
    marks = [f"MB in the {third} third" for third in THIRDS]
    return Result(
        "memory",
        {
            "records": records,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "resident_mb": {
                name: [round(found[mark(third)], 1) for third in THIRDS]
                for name, found in figures.items()
            },
            "growth": {name: round(value, 3) for name, value in growth.items()},
            "window": large,
            "bytes_per_pending": {name: round(value) for name, value in per_record.items()},
            "payload_bytes": {name: round(value, 1) for name, value in payload.items()},
        },
        [
            Table(
                f"{records:,} records read",
                ("variant", *marks, "growth", "records/s"),
                flat_rows,
            ),
            Table(f"{large:,} records pending", ("variant", "bytes each", "payload"), pending_rows),
        ],
        [Goal(f"{name}: growth", growth[name], MOST_GROWTH, at_most=True) for name in FLAT],
        NOTES,
    )


def _slope(held: dict[int, dict[str, dict[str, float]]], name: str, key: str) -> float:
    small, large = sorted(held)
    return (held[large][name][key] - held[small][name][key]) / (large - small)
