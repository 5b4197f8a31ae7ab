"""Try it: what was said in a play without an end, through a Kafka of its own.

python -m examples.word_count [--state-dir DIR] [--engine spark]
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from examples.running import (
    Message,
    Outcome,
    Surroundings,
    arguments,
    delta_files,
    on_engines,
    run_example,
)
from examples.word_count.pipeline import split, topology
from service.config.settings import EngineName

TARGET = "examples.word_count.pipeline:topology"
LINES = 5_000
SAID = (
    "The water comes down, and the wheel goes round.",
    "Down by the weir the miller counts his sacks!",
    "And round and round, and down again...",
    "Who counts the drops? The wheel does.",
    "Nobody does.",
)
SHOWN = 5


def main() -> int:
    """Run it, and return the exit code."""
    options = on_engines(arguments("word_count", __doc__)).parse_args()
    run = partial(_run, engine=options.engine)
    return run_example("word_count", options.state_dir, run)


def lines() -> Iterator[Message]:
    """The same lines in each run, by who says them; one in a thousand is no text."""
    rng = random.Random(1)  # noqa: S311 - it only has to look like a play
    for number in range(LINES):
        line = rng.choice(SAID).encode()
        is_torn = number % 1_000 == 500  # noqa: PLR2004 - one in a thousand
        yield f"voice-{number % 7}", b"\xff" + line if is_torn else line


def counts_in(table: Path) -> Counter[str]:
    """The counts of a Delta table, by its log and its files alone.

    A word has a row for each partition that its lines came from.
    """
    counts: Counter[str] = Counter()
    for file in delta_files(table):
        for row in pq.read_table(file, columns=["word", "n"]).to_pylist():
            counts[row["word"]] += row["n"]
    return counts


def _run(here: Surroundings, engine: EngineName) -> Outcome:
    here.publish("lines", lines())
    account = here.run(topology, here.config(engine=engine), target=TARGET)
    texts = [value.decode() for _, value in lines() if not value.startswith(b"\xff")]
    wanted = Counter(row["word"] for line in texts for row in split.process(line))
    found = counts_in(here.warehouse / "word_counts")
    gaps = []
    if found != wanted:
        gaps.append(f"{wanted.total()} words were said, and {found.total()} counted")
    return Outcome(account, gaps, [f"{word}: {n}" for word, n in found.most_common(SHOWN)])


if __name__ == "__main__":
    sys.exit(main())
