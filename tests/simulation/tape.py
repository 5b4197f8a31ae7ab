"""A seed's tape: run it, heal the world (promise 15), shrink what fails, and trace it."""

import json
import random
import time
import uuid
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

import structlog

from tests.simulation.errors import Violation
from tests.simulation.life import EVERY_PARTITION, FOR_OPERATORS
from tests.simulation.settings import is_shared, kind_of
from tests.simulation.spooled import files_in_memory
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


def events(seed, length):
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


def run(seed, tape, *, healing=True):
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


def run_seed(seed):
    return run(seed, list(events(seed, LENGTH)))


def _hash(world):
    stored = sorted(
        (str(p), seen.offset, seen.epoch) for p, seen in world.oracle.stored.now.items()
    )
    text = f"{stored} {sorted(world.situations.items())} {world.now} {world.sink.rows}"
    return zlib.crc32(text.encode())


@contextmanager
def quiet(seed):
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


def _named(rng):
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def _forbidden():
    raise AssertionError("the hearts ask no clock")


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A tape that breaks the promise still. `is_shortest`: no event of it can be left out."""

    tape: list[Event]
    is_shortest: bool
    seconds: float  # that there were

    def __str__(self):
        how = "as short as it gets"
        if not self.is_shortest:
            how = f"shrinking stopped after {self.seconds:g} s, so a shorter one may do"
        return f"{how} ({len(self.tape)} events)"


def shrink(seed, tape, violation, *, at, seconds=SHRINK_SECONDS):
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


def trace(seed, tape, say=print):
    """Print events, situations, emissions, notices and stored offsets, and how it ends."""
    with quiet(seed) as files:
        world = World(seed, files)
        _listen(world, say)
        say(str(world.settings))
        try:
            world.start()
            for place, event in enumerate(tape):
                say(f"{place:5} {json.dumps(event)}  {_lives(world)}")
                world.step(event)
            say("all heals")
            heal(world)
        except Violation as error:
            say(f"after step {world.steps}: {error}")
        else:
            say(f"clean after step {world.steps}")


def _lives(world):
    return " ".join(life.name + (" (paused)" if life.frozen else "") for life in world.lives)


def _listen(world, say):
    def also(owner, name, line):
        original = getattr(owner, name)

        def both(*args, **named):
            say(f"      {line(*args)}")
            return original(*args, **named)

        setattr(owner, name, both)

    also(world.zookeeper, "written", _write)
    also(world.oracle, "emitted", lambda life, try_, _: f"{life.name} emits {try_.record}")
    also(world.oracle, "declared", str)
    seen = world.situations
    world.situations = type(seen)()
    for owner in (world.sink, world.letters):
        also(owner, "seen", str)
    also(world, "seen", str)
    also(world.network, "_seen", str)


def _write(sender, path, _before, after):
    who = "the operator" if sender is None else sender.name
    return f"{who} writes {path}: {'nothing' if after is None else after.decode(errors='replace')}"


_ROUNDS = 1500
_OPERATOR = 100  # rounds
_SUPERVISOR = 50
_ROUND = (
    "poll", "net", "read", "bolt", "bolt", "bolt", "seal", "sink", "sink", "net", "letter",
    "letter", "take", "take", "take", "resolve", "commit", "expire", "heartbeat", "net", "tick",
)  # fmt: skip
_GOOD = 2


def _look_into(world):
    """The operator ends all processes when one waits for him, or ended for his sake.

    They start again with `skip`. Not for partitions that were merely taken over: who took
    them must go on with them.
    """
    halted = [held.error for life in world.lives for held in life.reader.assignment]
    if world.waits_for_operator or any(isinstance(error, FOR_OPERATORS) for error in halted):
        world.waits_for_operator = False
        world.seen("processes_ended_by_their_operator")
        for life in world.lives:
            life.end()
        world.lives.clear()
        world.do_repair(0, 0)


def heal(world):
    """End every fault, start a process if need be, write a record into each partition, and wait."""
    lived_on = _end_faults(world)
    _plan(world)
    for log in world.cluster.live_logs():
        log.append(1)
        log.append_gap(1)  # its transaction's marker
    rng = random.Random(world.settings.seed)
    missing = ""
    for turn in range(_ROUNDS):
        for kind in _ROUND:
            world.step((kind, rng.randrange(1 << 30), _dice(kind, rng)))
        if turn % _OPERATOR == 0:
            _look_into(world)
            _plan(world)
        if lived_on and turn == _SUPERVISOR and not _all_held(world):
            world.start(heal=True)
        if not world.lives:
            world.seen("process_started_again_by_its_supervisor")
            world.start(heal=True)
        if turn % 8 == 0:
            missing = world.oracle.everything_is_settled()
            if missing is None:
                for life in world.lives:
                    world.transactions.kept(life)
                    world.oracle.let_go(life)
                return
    raise Violation(15, f"after everything had healed: {missing}")


def _plan(world):
    for life in world.lives if world.settings.shared else ():
        life.want(EVERY_PARTITION if life is world.lives[-1] else ())


def _end_faults(world):
    world.heal()
    for life in list(world.lives):
        life.frozen = False
        if life.draining:  # it may own what it reads no more
            life.end()
            world.lives.remove(life)
    world.waits_for_operator = False
    if world.settings.seed % 2 == 0 and world.lives:
        return True
    world.start(heal=True)
    return False


def _all_held(world):
    """Whether each partition is some process's; nobody takes up again what a dead one took."""
    held = {
        held.partition
        for life in world.lives
        for held in life.reader.assignment
        if held.error is None
    }
    return all(log.partition in held for log in world.cluster.live_logs())


def _dice(kind, rng):
    dice = rng.randrange(1 << 30)
    if kind == "bolt":
        return dice & ~(63 << 5)
    if kind in {"sink", "letter"}:
        return dice | _GOOD
    return dice % 3 if kind == "tick" else dice
