"""How often each word was said: lines from Kafka into a table with a count for each word.

headrace run examples.word_count.pipeline:topology --config service.toml
"""

import re
from collections.abc import Iterator
from typing import TypedDict

from headrace import Topology, bolt
from headrace.payloads import text
from headrace.sinks import KafkaDeadLetters
from headrace.state import DeltaState, State, StateStore, count, most

_WORD = re.compile(r"[a-z']+")


class Word(TypedDict):
    """A word of a line."""

    word: str
    length: int  # of the line, in words


@bolt
def split(line: str) -> Iterator[Word]:
    """The words of a line, in lower case."""
    words = _WORD.findall(line.lower())
    for word in words:
        yield {"word": word, "length": len(words)}


def counted(place: StateStore) -> Topology:
    """The topology, with its counts kept there."""
    counts = State("word_counts", key={"word": str}, into=place)
    topology = Topology("word-count", reliability="exactly-once")
    words = topology.source("lines").then(text()).then(split)
    words.aggregate(counts, n=count(), longest_line=most("length"))
    topology.dead_letters.into(KafkaDeadLetters("lines.dead"))
    return topology


topology = counted(DeltaState("word_counts"))
