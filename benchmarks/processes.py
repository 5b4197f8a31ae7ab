"""The processor time of a whole tree of processes: ours, Spark's JVM, its Python workers.

Linux only, read from /proc; the kernel counts in hundredths of a second there.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_PROC = "/proc"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """One process, with the time of the children that it has waited for."""

    pid: int
    parent: int
    session: int
    seconds: float


def parse(stat: str) -> Process:
    """Read a line of /proc/PID/stat. Fields are counted from the name's end: it may hold blanks."""
    pid, rest = stat.split(" ", 1)
    after = rest.rpartition(")")[2].split()
    ticks = sum(map(int, after[11:15]))  # user, system, and both of children that have ended
    return Process(int(pid), int(after[1]), int(after[3]), ticks / _TICKS)


def tree(processes: Iterable[Process], root: int) -> list[Process]:
    """The root, whatever descends from it, and all sessions that one of these leads.

    The sessions are what is left of a descendant whose parent has ended; Spark's JVM leads one.
    """
    known = {each.pid: each for each in processes}
    members: set[int] = set()
    new = {root} & known.keys()
    while new:
        members |= new
        new = {
            each.pid for each in known.values() if each.parent in members or each.session in members
        } - members
    return [known[pid] for pid in sorted(members)]


def tree_seconds() -> float:
    """Seconds of processor time, so far, of this process's tree.

    One that ends is still counted, by the parent that waits for it. Servers that were started
    elsewhere are in no part of it.
    """
    return sum(each.seconds for each in tree(running(), os.getpid()))


def running() -> Iterator[Process]:
    """All processes."""
    # Without pathlib, which takes longer: this is called several times a second.
    for name in os.listdir(_PROC):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"{_PROC}/{name}/stat", "rb", buffering=0) as file:  # noqa: PTH123
                    yield parse(file.read().decode(errors="replace"))
            except OSError:  # it has just ended
                continue
