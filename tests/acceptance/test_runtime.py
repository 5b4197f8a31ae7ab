"""The runtime on real servers: at most once, several sources and sinks, order, rates, hooks."""

import random
import time
from collections import Counter, defaultdict
from itertools import count, groupby
from signal import SIGTERM

import pytest

from tests.acceptance.evidence import Place
from tests.acceptance.harness import Run
from tests.acceptance.stored import Offsets
from tests.acceptance.trial import Trial, places, rows_below, rows_of
from tests.support.patience import slack

pytestmark = pytest.mark.acceptance

TOPOLOGIES = "tests.acceptance.runtime"

WINDOW = 500  # max_pending, of each partition
CHUNK = 100
RETRIES = {"limit": 5, "initial_seconds": 0.05}

# What runtime.py has:
KEYS = 17
FAILS_EVERY = 50
FAILURES = 2
TROUBLED_KEYS = 20  # that troubled.py has

ENDS_WITHIN_SECONDS = 15.0


@pytest.fixture
def rng():
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201
    return random.Random(seed)


def test_at_most_once_kill_repeats_no_effect(trial, rng):
    counts = (5_000, 5_000)
    trial.publish(*counts)
    config = {"pipeline": {"max_pending": WINDOW, "chunk_records": CHUNK}}
    kills = 2
    with trial.watch() as watch:
        for _ in range(kills):
            run = trial.start("at_most_once", config=config)
            trial.wait_for(run, rng.randrange(1, 3_000), "effects")
            offsets = trial.kill(run)
            early = [at for at in _noted(trial, run, "effects") if at[1] >= offsets.get(at[0], 0)]
            assert early == [], "their effect came before their offset was stored"
        run = trial.start("at_most_once", "--until-caught-up", config=config)
        assert run.wait() == 0, run.tail()
    effects = Counter(trial.notes("effects"))
    assert max(effects.values()) == 1
    assert trial.rows() <= effects
    for partition, number in enumerate(counts):
        had_none = number - sum(1 for place in effects if place.startswith(f"{partition}:"))
        print(f"partition {partition}: {had_none} records are lost")  # noqa: T201
        assert had_none <= kills * WINDOW
    assert trial.stored() == dict(enumerate(counts))
    assert watch.wrong == []


def test_at_most_once_sigterm_loses_nothing(trial, rng):
    """Promise 16: it drains what is stored ahead, too."""
    counts = (3_000, 3_000)
    bad = [(0, 10), (0, 11), (1, 2_999)]
    trial.publish(*counts, trouble=bad)
    config = {"pipeline": {"max_pending": WINDOW, "chunk_records": CHUNK}}
    run = trial.start("at_most_once", config=config)
    trial.wait_for(run, rng.randrange(1_000, 3_000), "effects")
    run.send(SIGTERM)
    assert run.wait() == 0, run.tail()
    until_then = rows_below(trial.stored())
    assert 1_000 <= until_then.total() < sum(counts)
    assert Counter(trial.notes("effects")) == until_then
    run = trial.start("at_most_once", "--until-caught-up", config=config)
    assert run.wait() == 0, run.tail()
    assert Counter(trial.notes("effects")) == rows_of(places(*counts))
    assert trial.rows() == rows_of(place for place in places(*counts) if place not in bad)
    letters = [(int(x["partition"]), int(x["offset"]), x["attempts"]) for x in trial.letters()]
    assert sorted(letters) == [(*place, "1") for place in bad]
    assert [len(trial.tries(place)) for place in bad] == [1, 1, 1]


@pytest.mark.parametrize(
    "topology", ["blocking", "by_key", pytest.param("in_order", marks=pytest.mark.nightly)]
)
def test_sigterm_finishes_calls_and_awaits_no_retry(trial, topology):
    """Promise 16: the deadline is not waited for, also when others must come after the retry."""
    counts = (20_000, 20_000)
    stuck = (0, 500)
    trial.publish(*counts, trouble=[stuck])
    trial.topologies = "tests.acceptance.troubled"
    run = trial.start(
        topology,
        config={"retries": {"initial_seconds": 300.0}, "pipeline": {"drain_seconds": 60.0}},
    )
    trial.wait_for(run, 1_000)
    run.until("it fails", lambda: trial.tries(stuck))
    sent = time.monotonic()
    run.send(SIGTERM)
    assert run.wait() == 0, run.tail()
    assert time.monotonic() - sent < slack(ENDS_WITHIN_SECONDS)
    assert run.events("drain_deadline_passed") == []
    done = {partition: set[int]() for partition in range(len(counts))}
    for row in trial.rows():
        partition, offset = _place(row)
        done[partition].add(offset)
    stored = trial.stored()
    assert stored == {p: _first_left(done[p]) for p in stored}
    left = {
        (partition, offset)
        for partition, offsets in done.items()
        for offset in range(max(offsets, default=0))
        if offset not in offsets
    }
    if topology == "by_key":
        left = {place for place in left if place[1] % TROUBLED_KEYS != stuck[1] % TROUBLED_KEYS}
    assert left <= {stuck}
    assert max(trial.rows().values()) == 1


def test_keys_are_called_in_order_after_kill_9(trial, rng):
    """Promise 16, and nothing of a key is called while a record of it waits for its retry."""
    counts = (4_000, 4_000)
    trial.publish(*counts)
    since: Offsets = {}
    for _ in range(2):
        run = trial.start("keyed", config={"retries": RETRIES})
        trial.wait_for(run, rng.randrange(200, 2_500), "calls")
        offsets = trial.kill(run)
        assert set(rows_below(offsets)) <= set(trial.rows())
        _check_order(trial, run, since, counts)
        since = offsets
    run = trial.start("keyed", "--until-caught-up", config={"retries": RETRIES})
    assert run.wait() == 0, run.tail()
    _check_order(trial, run, since, counts)
    assert set(trial.rows()) == set(rows_of(places(*counts)))
    assert trial.stored() == dict(enumerate(counts))
    assert trial.letters() == []


def test_hooks_see_each_partition_assigned_and_revoked_once(trial):
    counts = (50, 0, 50, 50)
    trial.publish(*counts)
    run = trial.start("hooked")
    trial.wait_for(run, sum(counts))
    run.send(SIGTERM)
    assert run.wait() == 0, run.tail()
    assert trial.stored() == dict(enumerate(counts))
    news = trial.notes("news")
    assert news[:2] == ["start", "open"]
    assert news[-2:] == ["close", "stop"]
    for partition, number in enumerate(counts):
        name = f"{trial.name} {partition}: "
        assert [line.removeprefix(name) for line in news if line.startswith(name)] == [
            "assigned",
            "assigned, to the bolt",
            *(["begins"] if number else []),
            "revoked, to the bolt",
            "revoked",
        ]


def _check_order(trial: Trial, run: Run, since: Offsets, counts: tuple[int, ...]) -> None:
    """What a process called of each key: all in order, and those that failed until they did not."""
    by_key: defaultdict[Place, list[int]] = defaultdict(list)
    for partition, offset in _noted(trial, run, "calls"):
        by_key[partition, offset % KEYS].append(offset)
    for (partition, key), called in by_key.items():
        wanted = [o for o in range(since.get(partition, 0), counts[partition]) if o % KEYS == key]
        calls = [(offset, len(list(each))) for offset, each in groupby(called)]
        assert [offset for offset, _ in calls] == wanted[: len(calls)]
        for offset, tries in calls[:-1]:  # the process may be killed before the last is tried again
            assert tries == (1 if offset % FAILS_EVERY else 1 + FAILURES)


def _noted(trial: Trial, run: Run, kind: str) -> list[Place]:
    return list(map(_place, trial.notes(kind, run)))


def _place(text: str) -> Place:
    partition, offset = text.split(":")
    return int(partition), int(offset)


def _first_left(offsets: set[int]) -> int:
    return next(offset for offset in count() if offset not in offsets)
