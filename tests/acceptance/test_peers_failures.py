"""What other consumers were seen to do wrong: docs/concepts/one-bad-record.md has the list."""

import random
import time

import pytest

from tests.acceptance.evidence import Place
from tests.acceptance.harness import Run
from tests.acceptance.stored import Offsets, Watch
from tests.acceptance.trial import Trial, places, rows_below, rows_of
from tests.support.patience import slack, until

pytestmark = pytest.mark.acceptance

BAD = (0, 500)
RECORDS = 1_000
RETRIES = {"limit": 2, "initial_seconds": 0.5}
KEYS = 20  # that troubled.py has
CHUNK = 4
# Alone, every second one, and one beside the other: more of both than fit into a chunk.
STUCK = (0, *range(200, 212, 2), *range(400, 405), 700, 998, 999)
SOME_READS = 8
EVERY_SLOW = 2_003
RESUMES_WITHIN_SECONDS = 6.0  # 0.7 on a machine with nothing else to do


def each(*topologies: str, at_night: tuple[str, ...]) -> pytest.MarkDecorator:
    others = [pytest.param(name, marks=pytest.mark.nightly) for name in at_night]
    return pytest.mark.parametrize("topology", [*topologies, *others])


@each(
    "awaited", "vectorised", "rejected",
    at_night=("function", "hanging", "hanging_thread", "by_key"),
)  # fmt: skip
def test_a_record_that_always_fails_takes_no_other_with_it(trial, topology):
    """Promise 13: it is tried again, then buried, and only then may the offset pass.

    Each of the other 999 is in the sink, once, however the bolt is called: one by one, as a
    batch, awaited together with those that go well, in threads, or in the order of a key.
    """
    trial.publish(RECORDS, trouble=[BAD])
    with trial.watch() as watch:
        run = trial.start(topology, "--until-caught-up", config={"retries": RETRIES})
        assert run.wait() == 0, run.tail()
    good = rows_of(place for place in places(RECORDS) if place != BAD)
    assert trial.rows() == good
    is_final = topology == "rejected"  # a row that does not fit its table never will
    [letter] = trial.letters()
    assert (int(letter["partition"]), int(letter["offset"])) == BAD
    assert int(letter["attempts"]) == (1 if is_final else 1 + RETRIES["limit"])
    assert trial.stored() == {0: RECORDS}
    assert watch.wrong == []
    if not is_final:
        assert watch.passed(*BAD) > trial.tries(BAD)[-1]


@each("by_key", at_night=("waiting", "function", "in_order"))
def test_stored_offset_is_the_lowest_unresolved_record(trial, topology):
    """Promise 1: single, adjacent and alternating gaps, within a chunk and across chunks.

    Promise 10: they hold up none of the others, but those that must come after them in the
    order of a key or of the partition. Which of them ends first is drawn at random.
    """
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    stuck = {(0, offset) for offset in STUCK}
    trial.publish(RECORDS, trouble=stuck)
    order = random.Random(seed).sample(sorted(stuck), len(stuck))
    with trial.watch() as watch:
        run = trial.start(
            topology, "--until-caught-up", config={"pipeline": {"chunk_records": CHUNK}}
        )
        trial.wait_for(run, _free(stuck, topology))
        opened = {}
        for place in order:
            _stands(watch, run, min(stuck)[1])
            opened[place] = trial.open(place)
            stuck.remove(place)
            trial.wait_for(run, _free(stuck, topology))
        assert run.wait() == 0, run.tail()
    assert trial.rows() == rows_of(places(RECORDS))
    assert _disordered(trial, run, topology) == []
    assert trial.letters() == []
    assert trial.stored() == {0: RECORDS}
    assert watch.wrong == []
    too_early = [place for place in order if watch.passed(*place) < opened[place]]
    assert too_early == []


def test_failing_tenth_of_a_partition_stops_nothing(trial):
    """Promise 10: a partition with stuck records goes on, and the others do as if they were none.

    Nothing limits how many gaps there are but the window itself.
    """
    counts = (60_000, 10_000, 10_000, 10_000)
    trouble = [(0, offset) for offset in range(5, counts[0], 10)]
    trial.publish(*counts, trouble=trouble)
    with trial.watch() as watch:
        run = trial.start(
            "function", "--until-caught-up", config={"retries": {"initial_seconds": 1.0}}
        )
        trial.wait_for(run, sum(counts) - len(trouble))
        wanted = {0: 5, **{number: counts[number] for number in (1, 2, 3)}}
        run.until("all that can be is stored", lambda: watch.newest == wanted)
        opened = trial.open()
        assert run.wait() == 0, run.tail()
    assert trial.rows() == rows_of(places(*counts))
    assert trial.letters() == []
    assert trial.stored() == dict(enumerate(counts))
    assert watch.wrong == []
    assert watch.passed(0, 5) > opened


def test_two_kills_among_slow_records_lose_nothing(trial):
    """Promise 16: kill -9 at any instant loses nothing.

    Promise 1: at either kill every record below the stored offset is in the sink, though later
    ones were processed long before it.
    """
    counts = (10_000,) * 4
    records = sorted(places(*counts), key=lambda place: (place[1], place[0]))
    slow = records[EVERY_SLOW - 1 :: EVERY_SLOW]
    first = {partition: min(o for p, o in slow if p == partition) for partition in range(4)}
    trial.publish(*counts, trouble=slow)
    at_kills = []
    with trial.watch() as watch:
        run = trial.start("slow")
        trial.wait_for(run, len(records) // 3)
        at_kills.append(_kill(trial, run))
        assert trial.rows().total() > sum(at_kills[0].values()), "some were ahead of a slow one"
        run = trial.start("slow")
        run.until(
            "a slow record's offset is passed",
            lambda: any(watch.newest.get(p, 0) > o for p, o in first.items()),
        )
        at_kills.append(_kill(trial, run))
        print(f"stored at the kills: {at_kills}")  # noqa: T201
        run = trial.start("slow", "--until-caught-up")
        assert run.wait() == 0, run.tail()
    rows = trial.rows()
    assert set(rows) == set(rows_of(records))
    allowed = rows_of(records)
    for kill in at_kills:
        allowed += rows_of(place for place in records if place[1] >= kill.get(place[0], 0))
    assert rows <= allowed, "what was stored at a kill is not repeated"
    assert trial.letters() == []
    assert trial.stored() == dict(enumerate(counts))
    assert watch.wrong == []


def test_after_kill_9_the_next_process_reads_at_once(trial):
    """Promise 16: its own partitions are taken up again while the dead one's session still lives.

    The sessions' time-outs are 45 seconds, in ZooKeeper and in Kafka's client.
    """
    counts = (100,) * 4
    trial.publish(*counts, trouble=[(0, 0)])
    run = trial.start("waiting")
    trial.wait_for(run, sum(counts) - 1)
    assert _kill(trial, run).get(0, 0) == 0
    started = time.monotonic()
    run = trial.start("waiting", "--until-caught-up")
    run.until("the first row", lambda: trial.written(run), 120)
    seconds = time.monotonic() - started
    print(f"the first row after {seconds:.1f} s")  # noqa: T201
    trial.open()
    assert run.wait() == 0, run.tail()
    assert seconds < slack(RESUMES_WITHIN_SECONDS)
    assert set(trial.rows()) == set(rows_of(places(*counts)))
    assert trial.stored() == dict(enumerate(counts))


def _key(offset: int, topology: str) -> int:
    """What a record has to wait its turn for; by itself it waits for nobody."""
    return {"by_key": offset % KEYS, "in_order": 0}.get(topology, offset)


def _free(stuck: set[Place], topology: str) -> int:
    """How many records neither are stuck nor have to wait for one that is."""
    first: dict[int, int] = {}
    for _, offset in sorted(stuck):
        first.setdefault(_key(offset, topology), offset)
    return sum(n < first.get(_key(n, topology), RECORDS) for n in range(RECORDS))


def _disordered(trial: Trial, run: Run, topology: str) -> list[str]:
    """The rows that were written after a later one of their key."""
    newest: dict[int, int] = {}
    found = []
    for row in trial.notes("rows", run):
        offset = int(row.split(":")[1])
        key = _key(offset, topology)
        if offset < newest.get(key, 0):
            found.append(row)
        newest[key] = offset
    return found


def _stands(watch: Watch, run: Run, offset: int) -> None:
    """The stored offset gets there, and stays there while it is read some more times."""
    run.until(f"{offset} is stored", lambda: watch.newest.get(0, -1) >= offset)
    enough = watch.reads + SOME_READS
    until("some reads", lambda: watch.reads >= enough)
    assert watch.newest == {0: offset}, f"{offset} is the lowest unresolved\n{run.tail()}"


def _kill(trial: Trial, run: Run) -> Offsets:
    """Kill the process; what is stored then, all of which must be in the sink."""
    offsets = trial.kill(run)
    assert set(rows_below(offsets)) <= set(trial.rows())
    return offsets
