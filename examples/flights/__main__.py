"""The main job: a year of real flights, from an own Kafka into an own Delta table.

python -m examples.flights [--state-dir DIR] [--limit N]
"""

import sys
from functools import partial
from pathlib import Path

from examples.flights.pipeline import topology
from examples.flights.proof import dead_letters_in, rows_in_table
from examples.flights.publish import publish
from examples.running import Outcome, Surroundings, arguments, run_example

CONFIG = Path(__file__).with_name("service.toml")
TOPIC = "flights"


def main() -> int:
    """Publish, run until caught up, print the account; return the exit code."""
    parser = arguments("flights", __doc__)
    parser.add_argument("--limit", type=int, help="only the first N flights")
    options = parser.parse_args()
    run = partial(_run, limit=options.limit)
    return run_example("flights", options.state_dir, run, jars=["delta"])


def _run(here: Surroundings, limit: int | None) -> Outcome:
    """Run the pipeline over freshly published flights."""
    here.progress.step("publishing flights")
    publish(
        here.servers.kafka.address,
        TOPIC,
        limit=limit,
        progress=lambda done, total: here.progress.step("publishing flights", done, total),
    )
    account = here.run(topology, here.config(CONFIG))
    # The account is the pipeline's own; these two are not.
    gaps = []
    rows = rows_in_table(here.warehouse / "flight_events")
    if rows != account.rows:
        gaps.append(f"the account has {account.rows} rows, but the table holds {rows}")
    letters = dead_letters_in(here.servers.kafka.address, str(account.dead_letters))
    if letters != account.dead_lettered:
        gaps.append(f"the account has {account.dead_lettered} dead letters, the topic {letters}")
    return Outcome(account, gaps)


if __name__ == "__main__":
    sys.exit(main())
