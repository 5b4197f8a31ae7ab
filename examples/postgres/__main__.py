"""Try it: the scans of two thousand parcels, through a Kafka and a PostgreSQL of its own.

python -m examples.postgres [--state-dir DIR]
"""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import orjson
import psycopg

from examples.postgres.pipeline import tracked
from examples.running import Message, Outcome, Surroundings, arguments, run_example
from examples.support.postgres_server import EmbeddedPostgres

PARCELS = 2_000
FROM = datetime(2026, 5, 1, 6, tzinfo=UTC)
PLACES = ("Arnhem", "Breda", "Delft", "Zwolle")
WAYS = (
    ("accepted", "sorted", "sorted", "loaded", "handed over"),
    ("accepted", "sorted", "loaded", "refused"),
    ("accepted", "sorted"),
    ("accepted", "sorted", "lost in thought"),  # an event that nobody knows
)


def main() -> int:
    """Run it, and return the exit code."""
    options = arguments("postgres", __doc__).parse_args()
    return run_example("postgres", options.state_dir, _run)


def scans() -> Iterator[Message]:
    """The same scans in each run, by parcel; all parcels are on their way at once."""
    rng = random.Random(1)  # noqa: S311 - it only has to look like a post office
    ways = [rng.choice(WAYS) for _ in range(PARCELS)]
    for step in range(max(map(len, WAYS))):
        for number, way in enumerate(ways):
            if step < len(way):
                parcel = f"P{number:05}"
                scan = {
                    "parcel": parcel,
                    "event": way[step],
                    "place": rng.choice(PLACES),
                    "at": FROM + timedelta(hours=4 * step, seconds=number),
                }
                yield parcel, orjson.dumps(scan)


def states_in(server: EmbeddedPostgres) -> dict[str, int]:
    """How many parcels are in which state, as the database says."""
    query = "SELECT state, count(*) FROM parcels GROUP BY state ORDER BY state"
    with psycopg.connect(server.url, user=server.user, password=server.password) as connection:
        return dict(connection.execute(query).fetchall())


def _run(here: Surroundings) -> Outcome:
    with closing(EmbeddedPostgres(here.folder / "postgres")) as server:
        server.remove_data()  # of the run before
        here.progress.step("starting PostgreSQL")
        server.open()
        os.environ |= {"PGUSER": server.user, "PGPASSWORD": server.password}
        here.publish("scans", scans())
        account = here.run(tracked(server.url))
        states = states_in(server)
    events = {parcel: orjson.loads(value)["event"] for parcel, value in scans()}  # the last of each
    left = sum(event != "handed over" for event in events.values())
    gaps = []
    if sum(states.values()) != left:
        gaps.append(f"{left} parcels are not delivered, but the table has {sum(states.values())}")
    return Outcome(account, gaps, [f"{count} {state}" for state, count in states.items()])


if __name__ == "__main__":
    sys.exit(main())
