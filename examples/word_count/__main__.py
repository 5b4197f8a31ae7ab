"""Try it: what was said in a play without an end, through a Kafka of its own.

python -m examples.word_count [--state-dir DIR]
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from examples.running import Message, Outcome, Surroundings, arguments, run_example
from examples.word_count.pipeline import split, topology

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
    options = arguments("word_count", __doc__).parse_args()
    return run_example("word_count", options.state_dir, _run, jars=["delta"])


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
    files: set[str] = set()
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            files |= {action["add"]["path"]} if "add" in action else set()
            files -= {action["remove"]["path"]} if "remove" in action else set()
    counts: Counter[str] = Counter()
    for file in sorted(files):
        for row in pq.read_table(table / file, columns=["word", "n"]).to_pylist():
            counts[row["word"]] += row["n"]
    return counts


def _run(here: Surroundings) -> Outcome:
    here.publish("lines", lines())
    account = here.run(topology)
    texts = [value.decode() for _, value in lines() if not value.startswith(b"\xff")]
    wanted = Counter(row["word"] for line in texts for row in split.process(line))
    found = counts_in(here.warehouse / "word_counts")
    gaps = []
    if found != wanted:
        gaps.append(f"{wanted.total()} words were said, and {found.total()} counted")
    return Outcome(account, gaps, [f"{word}: {n}" for word, n in found.most_common(SHOWN)])


if __name__ == "__main__":
    sys.exit(main())
