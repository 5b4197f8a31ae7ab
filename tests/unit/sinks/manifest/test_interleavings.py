"""Owners of one line that run in any order of their steps, and are killed between any two."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sinks.manifest import log as log_module
from sinks.manifest.log import ManifestLog
from tests.support.patience import seconds
from tests.worlds.manifest_table import LINE, Table, group
from topology.errors import SinkBusy, SinkFenced
from topology.transactional import Fence

TRANSACTIONS = 3  # that each owner wants to commit
OWNERS = 2
LIVES = 3  # of each owner


class Killed(BaseException):
    """The process ends here."""


class Turns:
    """Lets threads go on one step at a time, in the order that is drawn."""

    def __init__(self, order: list[int], killed: set[int], lost: set[int]) -> None:
        self.order = iter(order)
        self.killed = killed  # the steps at which a process ends
        self.lost = lost  # the entries whose reply is lost, as they are counted
        self.steps = 0
        self.entries = 0
        self.going: dict[int, threading.Semaphore] = {}
        self.paused = threading.Semaphore(0)
        self.errors: list[BaseException] = []

    def run(self, programs: list[Callable[[], None]]) -> None:
        threads = [threading.Thread(target=self._live, args=(each,)) for each in programs]
        waiting = []
        for thread in threads:
            thread.start()
            assert self.paused.acquire(timeout=seconds(30))
            waiting.append(thread)
        while waiting:
            self.going[waiting[next(self.order, 0) % len(waiting)].ident or 0].release()
            assert self.paused.acquire(timeout=seconds(30))
            waiting = [each for each in waiting if each.ident in self.going]
        for thread in threads:
            thread.join(seconds(30))
        assert self.errors == []

    def pause(self) -> None:
        """Wait for one's turn; threads that take none are let through."""
        mine = self.going.get(threading.get_ident())
        if mine is None:
            return
        self.paused.release()
        mine.acquire()
        self.steps += 1
        if self.steps in self.killed:
            raise Killed

    def reply(self) -> None:
        """An entry has its name; whoever gave it may not hear of it."""
        if threading.get_ident() in self.going:
            self.entries += 1
            if self.entries in self.lost:
                raise OSError("the reply is lost")

    def _live(self, program: Callable[[], None]) -> None:
        self.going[threading.get_ident()] = threading.Semaphore(0)
        self.paused.release()
        self.going[threading.get_ident()].acquire()
        try:
            program()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
            self.errors.append(error)
        finally:
            del self.going[threading.get_ident()]
            self.paused.release()


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Turns]]:
    """Pauses around everything that a log does to its folder; few entries stay in it."""
    turns: list[Turns] = []
    link, read, is_there = ManifestLog._link, ManifestLog._read, ManifestLog._is_there
    dropped = log_module._dropped

    def slow_link(log: ManifestLog, entry: Any) -> Any:
        turns[-1].pause()
        mark = link(log, entry)
        turns[-1].pause()
        if mark is not None:
            turns[-1].reply()
        return mark

    def slowly(call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any) -> Any:
            turns[-1].pause()
            return call(*arguments)

        return slow

    monkeypatch.setattr(ManifestLog, "_link", slow_link)
    monkeypatch.setattr(ManifestLog, "_read", slowly(read))
    monkeypatch.setattr(ManifestLog, "_is_there", slowly(is_there))
    monkeypatch.setattr(log_module, "_dropped", slowly(dropped))
    monkeypatch.setattr(log_module, "WHOLE_EVERY", 3)
    monkeypatch.setattr(log_module, "_KEEP_ENTRIES_SECONDS", -60.0)
    return turns


class Race:
    """Owners who take one line from each other, as ZooKeeper lets them."""

    def __init__(self, table: Table, turns: Turns) -> None:
        self.table, self.turns = table, turns
        self.epoch = 0
        self.told: set[int] = set()  # txids that an owner was told are committed
        self.fenced = 0

    def own(self) -> None:
        for _ in range(LIVES):
            try:
                self._live()
            except SinkFenced:
                self.fenced += 1
            except Killed:
                continue

    def _live(self) -> None:
        self.epoch += 1
        epoch = self.epoch
        sink = self.table.sink()
        (found,) = self._tried(lambda: sink.fence([Fence(LINE, epoch)]))
        for txid in range(found.txid + 1, TRANSACTIONS + 1):
            staged = sink.stage(group(txid, txid, epoch=epoch))
            self._tried(lambda staged=staged: sink.commit(staged))
            self.told.add(txid)

    def compact(self) -> None:
        sink = self.table.sink()
        for _ in range(LIVES):
            try:
                sink.compact(2**40)
            except (Killed, OSError, SinkBusy):
                continue

    def _tried(self, call: Callable[[], Any]) -> Any:
        """What a commit came to is not known: it is repeated, as any is that was busy."""
        while True:
            try:
                return call()
            except (OSError, SinkBusy):
                continue


steps = st.integers(1, 150)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    order=st.lists(st.integers(0, OWNERS), max_size=200),
    killed=st.sets(steps, max_size=3),
    lost=st.sets(st.integers(1, 12), max_size=3),
)
def test_every_order_of_steps_loses_and_repeats_nothing(
    patched: list[Turns], order: list[int], killed: set[int], lost: set[int]
) -> None:
    """Promise 9 and 14, Storm 45: whoever sleeps, is killed or hears no reply, at any step."""
    with TemporaryDirectory() as folder:
        table = Table(Path(folder))
        patched[:] = [Turns(order, killed, lost)]
        race = Race(table, patched[-1])
        table.sink().fence([])
        patched[-1].run([race.own] * OWNERS + [race.compact])

        last = table.sink()
        (found,) = last.fence([Fence(LINE, race.epoch + 1)])
        assert race.told <= set(range(1, found.txid + 1))
        for txid in range(found.txid + 1, TRANSACTIONS + 1):
            last.commit(last.stage(group(txid, txid, epoch=race.epoch + 1)))
        assert numbers(last) == list(range(1, TRANSACTIONS + 1))


def numbers(sink: Any) -> list[int]:
    read = [pq.ParquetFile(file).read()["number"].to_pylist() for file in sink.data_files()]
    return sorted(number for each in read for number in each)


def test_the_race_is_one(patched: list[Turns], tmp_path: Path) -> None:
    """In turn, each step of one beside a step of the other: somebody is fenced, and loses links."""
    table = Table(tmp_path)
    patched[:] = [Turns([0, 1] * 200, set(), set())]
    race = Race(table, patched[-1])
    table.sink().fence([])
    patched[-1].run([race.own] * OWNERS)
    assert race.fenced > 0
    assert race.told == set(range(1, TRANSACTIONS + 1))
