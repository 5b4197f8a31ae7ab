"""The crash points: the eighteen places on a record's way at which a replica is hit.

Each is a named place (`service/failpoints.py`), so that a replica is hit there and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Guarantee: TypeAlias = Literal["at least once", "exactly once"]
Moment: TypeAlias = Literal["claiming", "working", "leaving", "draining"]


@dataclass(frozen=True, slots=True)
class Point:
    """Where it is, by guarantee; a guarantee that has no such point is left out.

    The place is passed a random number of times first, at most `most`. `moment` is what the
    replica does then: it takes over partitions, it works, it lets partitions go, or it drains
    and cannot end.
    """

    what: str
    places: Mapping[Guarantee, str]
    most: int = 5
    moment: Moment = "working"
    repeats: frozenset[Guarantee] = frozenset()
    """Under which guarantees a kill must repeat something: else it did not hit what it says."""


def _both(place: str) -> Mapping[Guarantee, str]:
    return {"at least once": place, "exactly once": place}


POINTS: Mapping[str, Point] = {
    "C01": Point("before a partition is claimed", _both("claim_before_write"), 2, "claiming"),
    "C02": Point(
        "its epoch is raised in ZooKeeper, no sink was fenced",
        _both("claim_after_write"),
        2,
        "claiming",
    ),
    "C03": Point(
        "the sink is fenced, what it has committed was not read",
        {"exactly once": "sink_after_fence"},
        1,
        "claiming",
    ),
    "C04": Point(
        "records are fetched, their transaction is not stored",
        {"exactly once": "plan_before_store"},
    ),
    "C05": Point(
        "their transaction is stored, the answer was lost", {"exactly once": "plan_after_store"}
    ),
    "C06": Point(
        "their transaction is stored, nothing was emitted", {"exactly once": "plan_stored"}
    ),
    "C07": Point("amid the trees", _both("own_mid_tree"), 150),
    "C08": Point("a bolt's side effect is done, its ack is not", _both("own_effect_done"), 150),
    "C09": Point(
        "the trees are done but for the sink",
        _both("sink_before_stage"),
    ),
    "C10": Point(
        "the sink has written, and not committed",
        {"at least once": "own_sink_writing", "exactly once": "sink_before_commit"},
    ),
    "C11": Point(
        "the sink has committed, the answer was lost",
        _both("sink_after_commit"),
        repeats=frozenset({"at least once"}),
    ),
    "C12": Point(
        "the sink is known to be done, no offset was sent",
        _both("offset_before_store"),
        repeats=frozenset({"at least once"}),
    ),
    "C13": Point("the offset is stored, the answer was lost", _both("offset_after_store")),
    "C14": Point("the answer is there, memory has not advanced", _both("offset_stored")),
    "C15": Point("a dead letter is handed to the client, not sent", _both("letter_sent"), 12),
    "C16": Point(
        "a dead letter is durable, its offset is not",
        _both("letter_durable"),
        12,
        repeats=frozenset({"at least once", "exactly once"}),
    ),
    "C17": Point("a partition is let go amid a commit", _both("leaving_offset_sent"), 1, "leaving"),
    "C18": Point(
        "SIGTERM, the drain outlasts its grace period",
        _both(""),  # nothing passes here: a bolt hangs
        1,
        "draining",
    ),
}
