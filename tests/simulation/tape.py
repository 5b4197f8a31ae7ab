"""Tapes: a seed's events, running them, and the shortest one that still fails."""

import random
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

import structlog

from tests.simulation.errors import Violation
from tests.simulation.healing import heal
from tests.simulation.settings import is_shared, kind_of
from tests.simulation.spooled import SimFiles, files_in_memory
from tests.simulation.world import Event, World

# What happens all the time, and how often.
USUAL = {
    "poll": 12, "read": 13, "bolt": 30, "seal": 6, "take": 10, "resolve": 9, "commit": 7,
    "expire": 2, "heartbeat": 2, "net": 34, "sink": 12, "letter": 6, "tick": 9, "produce": 5,
    "supervise": 3, "mend": 2.5, "thaw": 0.6, "repair": 0.2, "gap": 0.3, "compact": 0.4,
}  # fmt: skip
# What goes wrong, and how often where it does at all.
FAULTS = {
    "start": 0.3, "crash": 0.2, "pause": 0.25, "lose": 1.5, "give_up": 1.5, "double": 1.0,
    "flap": 0.5, "interrupt": 3.0, "expire_session": 0.3,
    "cut_off": 0.3, "drain": 0.1, "damage": 0.12, "gap": 1.0,
    "compact": 2.5, "retention": 0.15, "truncate": 0.8, "elect": 0.3, "recreate": 0.04,
    "add_partition": 0.1, "corrupt": 0.15, "away": 0.3, "busy": 0.5, "jump": 0.2,
}  # fmt: skip
# The same where a world runs exactly once, whose records have a longer way.
USUAL_ONCE = USUAL | {
    "poll": 14, "read": 10, "bolt": 22, "seal": 12, "take": 24, "commit": 12, "net": 40,
    "sink": 34, "tick": 4, "produce": 2.5, "mend": 5, "repair": 0.5,
}  # fmt: skip
FAULTS_ONCE = {kind: rate / 2 for kind, rate in FAULTS.items()}
# What plans do where partitions are shared.
PLANS = {"plan": 1.0, "outage": 0.3}
# The same on the spark engine: a bolt's step is a task's.
USUAL_RANGES = USUAL | {
    "poll": 30, "bolt": 26, "take": 24, "commit": 10, "net": 40, "sink": 34, "tick": 6,
    "produce": 3, "mend": 5, "repair": 0.5, "read": 0, "seal": 0, "resolve": 0, "expire": 0,
}  # fmt: skip
_RATES = {
    "by trees": (USUAL, FAULTS),
    "by records": (USUAL_ONCE, FAULTS_ONCE),
    "by ranges": (USUAL_RANGES, FAULTS_ONCE),
}
SHRINK_SECONDS = 30.0
LENGTH = 4_000  # steps of a seed's own tape; healing adds some
_PHASE = 250  # steps after which other faults are likely
_DICE = 1 << 30


@dataclass(frozen=True, slots=True)
class Run:
    """How a tape ended."""

    seed: int
    steps: int
    violation: Violation | None
    situations: Counter[str]
    state: int  # a hash of everything that was observed
    at: int  # the place in the tape where it was violated


def events(seed: int, length: int) -> Iterator[Event]:
    """The events of a seed. Phases without faults alternate with some kinds of them."""
    rng = random.Random(f"tape {seed}")
    usual, faults = _RATES[kind_of(seed)]
    if is_shared(seed):
        faults = faults | PLANS
    kinds, weights = list(usual), list(usual.values())
    for step in range(length):
        if step % _PHASE == 0:
            rates = dict(usual)
            for kind, rate in faults.items():
                if rng.random() < 0.45:
                    rates[kind] = rates.get(kind, 0) + rate * rng.choice([0.5, 1.0, 3.0])
            kinds, weights = list(rates), list(rates.values())
        kind = rng.choices(kinds, weights)[0]
        yield kind, rng.randrange(_DICE), rng.randrange(_DICE)


def run(seed: int, tape: Sequence[Event], *, healing: bool = True) -> Run:
    """Run a tape in the seed's world, heal it, and see that a fresh record gets through."""
    with quiet(seed) as files:
        world = World(seed, files)
        violation, place = None, 0
        try:
            world.start()
            for place, event in enumerate(tape):  # noqa: B007 - read after the loop
                world.step(event)
            place = len(tape)
            if healing:
                heal(world)
        except Violation as error:
            violation = error
        return Run(seed, world.steps, violation, world.situations, _hash(world), place)


def run_seed(seed: int) -> Run:
    """Run a seed's own tape."""
    return run(seed, list(events(seed, LENGTH)))


def _hash(world: World) -> int:
    stored = sorted(
        (str(p), seen.offset, seen.epoch) for p, seen in world.oracle.stored.now.items()
    )
    text = f"{stored} {sorted(world.situations.items())} {world.now} {world.sink.rows}"
    return zlib.crc32(text.encode())


@contextmanager
def quiet(seed: int) -> Iterator[SimFiles]:
    """Without log lines and a disk, and without a clock or randomness but what the seed decides."""
    rng = random.Random(f"names {seed}")
    silent = structlog.make_filtering_bound_logger(50)
    before = structlog.get_config()
    structlog.configure(wrapper_class=silent, logger_factory=structlog.ReturnLoggerFactory())
    patches = (
        mock.patch.object(uuid, "uuid4", partial(_named, rng)),
        mock.patch.object(time, "time", _forbidden),
        mock.patch.object(time, "monotonic", _forbidden),
    )
    try:
        with patches[0], patches[1], patches[2], files_in_memory() as files:
            yield files
    finally:
        structlog.configure(**before)


def _named(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def _forbidden() -> float:
    raise AssertionError("the hearts ask no clock")


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A tape that breaks the promise still. `is_shortest`: no event of it can be left out."""

    tape: list[Event]
    is_shortest: bool
    seconds: float  # that there were

    def __str__(self) -> str:
        how = "as short as it gets"
        if not self.is_shortest:
            how = f"shrinking stopped after {self.seconds:g} s, so a shorter one may do"
        return f"{how} ({len(self.tape)} events)"


def shrink(
    seed: int,
    tape: Sequence[Event],
    violation: Violation,
    *,
    at: int,
    seconds: float = SHRINK_SECONDS,
) -> Shrunk:
    """Delete entries as long as the same promise is broken (delta debugging, Zeller 1999).

    What broke before the end of the tape (`at`) has to break without healing too.
    """
    ends = time.monotonic() + seconds
    healing = at >= len(tape)
    current = list(tape[: at + 1])
    size = max(len(current) // 2, 1)
    while time.monotonic() < ends:
        place, shorter = 0, False
        while place < len(current) and time.monotonic() < ends:
            candidate = current[:place] + current[place + size :]
            ended = run(seed, candidate, healing=healing)
            if ended.violation is not None and ended.violation.promise == violation.promise:
                current = candidate[: ended.at + 1]
                shorter = True
            else:
                place += size
        if size == 1 and not shorter and place >= len(current):
            return Shrunk(current, is_shortest=True, seconds=seconds)
        size = max(size // 2, 1)
    return Shrunk(current, is_shortest=False, seconds=seconds)
