"""The log of a manifest table: one entry per version, whoever writes it."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sinks.manifest import log as log_module
from sinks.manifest.entry import Change, Column, Entry, Line, Listed
from sinks.manifest.log import WHOLE_EVERY, ManifestLog
from sinks.manifest.state import State
from tests.support.patience import seconds
from topology.errors import SinkBusy, SinkFailed

COLUMNS = (Column("n", "bigint"),)


def made(table: Path, **options: Any) -> ManifestLog:
    """A log of its own on the table, which is made if it is not there."""
    log = ManifestLog(table, **options)
    if log.refresh() is None:
        log.create(COLUMNS, ())
    return log


def adding(name: str) -> Callable[[State], Change | None]:
    """Add a file, unless it is there: as a commit is decided."""
    return lambda state: None if name in state.files else Change(add=(Listed(name, 1, 1),))


def names(table: Path) -> list[str]:
    """The files of the table, as somebody reads it who has not read it before."""
    return list(ManifestLog(table).newest().files)


def entry(table: Path, version: int) -> Path:
    return table / "_headrace" / f"{version:020d}.json"


def test_there_is_no_table_where_there_is_no_entry(tmp_path: Path) -> None:
    assert ManifestLog(tmp_path).refresh() is None
    (tmp_path / "_headrace").mkdir()
    assert ManifestLog(tmp_path).refresh() is None
    (tmp_path / "file").touch()
    assert ManifestLog(tmp_path / "file").refresh() is None
    with pytest.raises(SinkFailed, match="has no log any more"):
        ManifestLog(tmp_path).newest()


def test_of_two_who_make_a_table_one_does(tmp_path: Path) -> None:
    first, second = ManifestLog(tmp_path), ManifestLog(tmp_path)
    assert first.refresh() is None
    assert second.refresh() is None
    first.create(COLUMNS, ("n",))
    second.create((), ())
    assert first.newest() == second.newest()
    assert second.newest().partition_by == ("n",)


def test_one_entry_is_one_version_and_all_read_the_same(tmp_path: Path) -> None:
    log, other = made(tmp_path), made(tmp_path)
    log.change(adding("a"))
    other.change(adding("b"))
    log.change(lambda state: Change(remove=("a",), lines={"x": Line(1, 2)}))
    assert log.newest() == other.newest() == ManifestLog(tmp_path).newest()
    assert (log.newest().version, names(tmp_path)) == (3, ["b"])
    assert log.newest().lines == {"x": Line(1, 2)}
    assert set(log.newest().removed) == {"a"}


def test_who_loses_a_version_reads_it_and_decides_anew(tmp_path: Path) -> None:
    log, other = made(tmp_path), made(tmp_path)
    seen = []

    def decide(state: State) -> Change | None:
        seen.append((state.version, list(state.files)))
        if len(seen) == 1:
            other.change(adding("theirs"))
        return adding("ours")(state)

    log.change(decide)
    assert seen == [(0, []), (1, ["theirs"])]
    assert names(tmp_path) == ["theirs", "ours"]


def test_who_loses_again_and_again_comes_later_and_has_done_nothing(tmp_path: Path) -> None:
    log, other = made(tmp_path), made(tmp_path)
    seen = []

    def decide(state: State) -> Change:
        seen.append(state.version)
        other.change(lambda state: Change())
        return Change(add=(Listed("ours", 1, 1),))

    with pytest.raises(SinkBusy, match="others keep changing the table"):
        log.change(decide)
    assert len(seen) == 21
    assert names(tmp_path) == []


def test_what_a_decision_raises_changes_nothing(tmp_path: Path) -> None:
    log = made(tmp_path)

    def refuse(state: State) -> Change:
        raise SinkFailed("no")

    with pytest.raises(SinkFailed, match="no"):
        log.change(refuse)
    assert log.newest().version == 0


def test_drafts_and_strange_files_are_passed_over(tmp_path: Path) -> None:
    made(tmp_path).change(adding("a"))
    folder = tmp_path / "_headrace"
    for name in (f".{2:020d}.json-torn", f"{2:020d}.json.tmp", "2.json", "README", ".2.crc"):
        (folder / name).write_bytes(b'{"format":1,"ver')
    (folder / "folder").mkdir()
    assert names(tmp_path) == ["a"]
    made(tmp_path).change(adding("b"))
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("raw", [b"", b"\0" * 99, b'{"format":1}', b'{"format":9}'])
def test_an_entry_that_is_not_what_was_written_is_named(tmp_path: Path, raw: bytes) -> None:
    log = made(tmp_path)
    for name in "abc":
        log.change(adding(name))
    path = entry(tmp_path, 2)
    path.write_bytes(raw)
    with pytest.raises(SinkFailed, match=f"manifest {path}: "):
        names(tmp_path)


def test_an_entry_that_is_gone_from_the_middle_is_named_and_never_made_again(
    tmp_path: Path,
) -> None:
    log = made(tmp_path)
    for name in "abc":
        log.change(adding(name))
    entry(tmp_path, 2).unlink()
    with pytest.raises(SinkFailed, match=f"{2:020d}.json: it is not there; later ones are"):
        ManifestLog(tmp_path).change(adding("d"))
    entry(tmp_path, 0).unlink()
    with pytest.raises(SinkFailed, match="no entry up to 3 tells the whole table"):
        names(tmp_path)


def test_now_and_then_an_entry_tells_the_whole_so_that_opening_reads_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = made(tmp_path)
    for number in range(2 * WHOLE_EVERY + 3):
        log.change(
            lambda state, n=number: Change(add=(Listed(f"{n}", 1, 1),), remove=(f"{n - 9}",))
        )
    read = []
    original = ManifestLog._read
    monkeypatch.setattr(ManifestLog, "_read", lambda log, v: read.append(v) or original(log, v))
    opened = ManifestLog(tmp_path).newest()
    assert read == [100, 101, 102, 103, 104]
    assert opened == log.newest()
    assert list(opened.files) == [str(number) for number in range(94, 103)]


HOUR = 3600.0


def later(hours: float) -> Callable[[], float]:
    return lambda: time.time() + hours * HOUR


def test_old_entries_are_dropped_when_no_reader_needs_them(tmp_path: Path) -> None:
    log = made(tmp_path)
    lagging = ManifestLog(tmp_path)
    lagging.newest()
    for number in range(3 * WHOLE_EVERY - 1):
        log.change(adding(f"{number}"))
    (tmp_path / "_headrace" / f".{7:020d}.json-killed").touch()
    assert entry(tmp_path, 0).exists()
    made(tmp_path, clock=later(2)).change(adding("last"))
    assert sorted(path.name for path in (tmp_path / "_headrace").iterdir()) == [
        entry(tmp_path, version).name for version in range(100, 151)
    ]
    assert lagging.newest() == log.newest() == ManifestLog(tmp_path).newest()
    assert len(names(tmp_path)) == 150


def test_no_entry_is_dropped_above_one_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else somebody who sleeps could take a name that is free for the next one."""
    log = made(tmp_path)
    for number in range(2 * WHOLE_EVERY - 1):
        log.change(adding(f"{number}"))
    young = time.time() + 3 * HOUR
    os.utime(entry(tmp_path, 7), (young, young))
    dropped = []
    original = log_module._dropped
    monkeypatch.setattr(
        log_module, "_dropped", lambda path, before: dropped.append(path) or original(path, before)
    )
    made(tmp_path, clock=later(2)).change(adding("last"))
    assert dropped == [entry(tmp_path, version) for version in range(8)]
    left = sorted((tmp_path / "_headrace").iterdir())
    assert left == [entry(tmp_path, version) for version in range(7, 101)]


def test_entries_of_the_last_hour_stay_for_people(tmp_path: Path) -> None:
    log = made(tmp_path, clock=later(0.9))
    for number in range(3 * WHOLE_EVERY):
        log.change(adding(f"{number}"))
    assert len(list((tmp_path / "_headrace").iterdir())) == 151


def far_behind(table: Path, versions: int = 3 * WHOLE_EVERY) -> None:
    """Others write on for hours."""
    others = made(table, clock=later(2))
    for _ in range(versions):
        others.change(lambda state: Change(lines={"theirs": Line(1, state.version)}))


def test_who_slept_while_its_place_was_dropped_does_not_write_into_the_past(
    tmp_path: Path,
) -> None:
    """Promise 9: the name it links is free again, but nobody would read it there."""
    log = made(tmp_path)
    log.change(adding("first"))
    asked = []

    def decide(state: State) -> Change | None:
        asked.append(state.version)
        if len(asked) == 1:
            far_behind(tmp_path)
        return adding("ours")(state)

    log.change(decide)
    assert asked == [1, 151]
    assert names(tmp_path) == ["first", "ours"]
    assert log.newest() == ManifestLog(tmp_path).newest()


def test_two_sleepers_whose_places_follow_each_other_do_not_take_each_other_for_the_table(
    tmp_path: Path,
) -> None:
    first, second = made(tmp_path), made(tmp_path)
    first.newest()
    second.change(adding("second's"))
    far_behind(tmp_path)
    assert not entry(tmp_path, 1).exists()
    # The first one writes into the past and is killed there, before it looks around.
    assert first._state is not None
    assert first._link(first._entry(1, Change(add=(Listed("lost", 1, 1),)))) is not None
    second.change(adding("ours"))
    assert names(tmp_path) == ["second's", "ours"]
    assert first.newest() == second.newest() == ManifestLog(tmp_path).newest()


def test_a_reader_who_lags_behind_does_not_believe_what_a_sleeper_left(tmp_path: Path) -> None:
    reader, sleeper = made(tmp_path), made(tmp_path)
    reader.newest()
    sleeper.newest()
    far_behind(tmp_path)
    sleeper._link(sleeper._entry(1, Change(add=(Listed("lost", 1, 1),))))
    assert list(reader.newest().files) == []
    assert reader.newest().version == 150


def test_a_reply_that_is_lost_is_found_by_deciding_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storm 45: the crash is between the link and the answer."""
    log = made(tmp_path)

    def broken(log: ManifestLog) -> None:
        raise OSError(errno.EIO, "the disk is away")

    with monkeypatch.context() as patched:
        patched.setattr(ManifestLog, "sync", broken)
        with pytest.raises(OSError, match="the disk is away"):
            log.change(adding("ours"))
    assert names(tmp_path) == ["ours"]
    log.change(adding("ours"))
    log.change(adding("next"))
    assert (names(tmp_path), log.newest().version) == (["ours", "next"], 2)


def test_a_link_that_a_network_asked_for_twice_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = made(tmp_path)
    original = os.link

    def twice(source: Path, target: Path) -> None:
        original(source, target)
        original(source, target)

    monkeypatch.setattr("sinks.manifest.log.os.link", twice)
    log.change(adding("ours"))
    assert (names(tmp_path), log.newest().version) == (["ours"], 1)


def test_a_full_disk_leaves_nothing_and_the_next_try_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = made(tmp_path)

    def full(path: Path, raw: bytes) -> int:
        with path.open("wb") as file:
            file.write(raw[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            log.change(adding("ours"))
    assert [path.name for path in (tmp_path / "_headrace").iterdir()] == [f"{0:020d}.json"]
    log.change(adding("ours"))
    assert names(tmp_path) == ["ours"]


def test_a_table_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    log = made(tmp_path)
    log.change(adding("old"))
    before = log.newest().table
    shutil.rmtree(tmp_path / "_headrace")
    assert log.refresh() is None
    made(tmp_path)
    assert log.newest().table != before
    assert log.newest().files == {}


def test_many_threads_lose_and_repeat_nothing(tmp_path: Path) -> None:
    made(tmp_path)
    start = threading.Barrier(4)
    failed = []

    def write(thread: int) -> None:
        log = ManifestLog(tmp_path)
        start.wait(seconds(30))
        for number in range(30):
            while True:
                try:
                    log.change(adding(f"{thread}-{number}"))
                except SinkBusy:
                    continue
                except Exception as error:
                    failed.append(error)
                    raise
                break

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds(60))
    assert failed == []
    wanted = {f"{thread}-{number}" for thread in range(4) for number in range(30)}
    assert set(names(tmp_path)) == wanted
    assert ManifestLog(tmp_path).newest().version == 120


def test_an_entry_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[Path]
) -> None:
    log = made(tmp_path)
    original = os.link

    def link(source: Path, target: Path) -> None:
        assert synced == [source]
        original(source, target)

    monkeypatch.setattr("sinks.manifest.log.os.link", link)
    synced.clear()
    log.change(adding("ours"))
    assert synced[1:] == [tmp_path / "_headrace"]


def test_what_is_found_done_is_on_the_disk_too(tmp_path: Path, synced: list[Path]) -> None:
    """Who did it may have died in between."""
    log = made(tmp_path)
    log.change(adding("theirs"))
    synced.clear()
    log.change(adding("theirs"))
    assert synced == [tmp_path / "_headrace"]


def test_entries_say_when_and_by_whom(tmp_path: Path) -> None:
    log = made(tmp_path, by="pipeline/sink", clock=lambda: 12.5)
    log.change(adding("a"))
    found = log._read(1)
    assert found is not None
    read: Entry = found[0]
    assert (read.made_by, read.made_ms) == ("pipeline/sink", 12_500)
