"""After the faults: everything heals, and a fresh record must get through (promise 15)."""

import random

from tests.simulation.errors import Violation
from tests.simulation.life import EVERY_PARTITION, FOR_OPERATORS
from tests.simulation.world import World

_ROUNDS = 1500
_OPERATOR = 100  # rounds
_SUPERVISOR = 50
_ROUND = (
    "poll", "net", "read", "bolt", "bolt", "bolt", "seal", "sink", "sink", "net", "letter",
    "letter", "take", "take", "take", "resolve", "commit", "expire", "heartbeat", "net", "tick",
)  # fmt: skip
_GOOD = 2


def _look_into(world: World) -> None:
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


def heal(world: World) -> None:
    """End every fault, start a process if need be, write a record into each partition, and wait."""
    lived_on = _end_faults(world)
    _plan(world)
    for log in world.cluster.live_logs():
        log.append(1)
        log.append_gap(1)  # its transaction's marker
    rng = random.Random(world.settings.seed)
    missing: str | None = ""
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


def _plan(world: World) -> None:
    """Give all partitions to the newest process, where they are shared."""
    for life in world.lives if world.settings.shared else ():
        life.want(EVERY_PARTITION if life is world.lives[-1] else ())


def _end_faults(world: World) -> bool:
    """Give whether the processes that lived through them go on alone."""
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


def _all_held(world: World) -> bool:
    """Whether each partition is some process's; nobody takes up again what a dead one took."""
    held = {
        held.partition
        for life in world.lives
        for held in life.reader.assignment
        if held.error is None
    }
    return all(log.partition in held for log in world.cluster.live_logs())


def _dice(kind: str, rng: random.Random) -> int:
    """Chance, but for what bolts, sink and letters may do wrong."""
    dice = rng.randrange(1 << 30)
    if kind == "bolt":
        return dice & ~(63 << 5)
    if kind in {"sink", "letter"}:
        return dice | _GOOD
    return dice % 3 if kind == "tick" else dice
