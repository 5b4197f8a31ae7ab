"""Try it: the changes of a thousand customers, through a Kafka of its own.

python -m examples.upserts [--state-dir DIR]
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator

import orjson
import pyarrow.parquet as pq

from examples.running import Change, Outcome, Surroundings, arguments, delta_files, run_example
from examples.upserts.pipeline import topology

CUSTOMERS = 1_000
CHANGES = 6_000
TOWNS = ("Arnhem", "Breda", "Delft", "Zwolle")
TORN_EVERY = 1_000


def main() -> int:
    """Run it, and return the exit code."""
    options = arguments("upserts", __doc__).parse_args()
    return run_example("upserts", options.state_dir, _run)


def changes() -> Iterator[Change]:
    """The same changes in each run, by customer; one in ten deletes, one in a thousand is torn."""
    rng = random.Random(1)  # noqa: S311 - it only has to look like a shop
    for number in range(CHANGES):
        customer = rng.randrange(CUSTOMERS)
        told = {"name": f"Customer {customer}", "town": rng.choice(TOWNS)}
        value = None if rng.random() < 0.1 else orjson.dumps(told)  # noqa: PLR2004 - one in ten
        yield f"{customer}", b'{"name"' if number % TORN_EVERY == 0 else value


def last_towns() -> dict[int, str]:
    """Where each customer lives by its last change; those that it deleted are not there."""
    towns: dict[int, str] = {}
    for customer, value in changes():
        if value is None:
            towns.pop(int(customer), None)
        elif value.endswith(b"}"):
            towns[int(customer)] = orjson.loads(value)["town"]
    return towns


def _run(here: Surroundings) -> Outcome:
    here.publish("customers", changes())
    account = here.run(topology)
    files = delta_files(here.warehouse / "customers")
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    found = {row["id"]: row["town"] for row in rows}
    gaps = []
    if len(rows) != len(found) or found != last_towns():
        gaps.append(f"{len(last_towns())} customers are left, but the table has {len(rows)} rows")
    shown = [f"{count} in {town}" for town, count in sorted(Counter(found.values()).items())]
    return Outcome(account, gaps, [*shown, f"{len(rows)} customers of {account.read} changes"])


if __name__ == "__main__":
    sys.exit(main())
