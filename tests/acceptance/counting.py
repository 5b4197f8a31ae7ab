"""Topologies that count words, in both layouts, while some records fail and some are rejected.

They are kept in the PostgreSQL that `WORDS_DATABASE` names, or else in a Delta table.
"""

import os
from collections.abc import Iterator

from headrace import Record, Reject, Retry, Topology, bolt
from headrace.sinks import KafkaDeadLetters
from headrace.state import DeltaState, PostgresState, State, StateStore, count
from tests.acceptance.sentences import words_of
from tests.acceptance.traces import TOPIC, text
from tests.acceptance.wanted import fails_once, is_rejected
from topology.sink import Kind

_failed: set[str] = set()


@bolt
def split(record: Record) -> Iterator[dict[str, str]]:
    """The words of a record; one that fails once does so when some of them are made."""
    place = text(record)
    if is_rejected(record.offset):
        raise Reject("it is trouble")
    for word in words_of(place):
        yield {"word": word}
    if fails_once(record.offset) and place not in _failed:
        _failed.add(place)
        raise Retry("it goes well the next time")


def _place() -> StateStore:
    url = os.environ.get("WORDS_DATABASE")
    return PostgresState(url, f"{TOPIC}-words") if url else DeltaState("words")


def _counting(kind: Kind) -> Topology:
    words = State("words", key={"word": str}, into=_place(), layout=kind)
    made = Topology(f"counting-{kind}", reliability="exactly-once", transactions=kind)
    made.source(TOPIC).then(split).aggregate(words, n=count())
    made.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
    return made


transactional = _counting("transactional")
opaque = _counting("opaque")
