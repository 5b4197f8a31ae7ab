import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from examples.support import postgres_server as postgres
from examples.support.postgres_server import (
    EmbeddedPostgres,
    PostgresMissing,
    find_binaries,
    unpacked,
)
from service.devservers.server import connects
from tests.acceptance import processes

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path / "state")
    yield server
    server.close()
    server.remove_data()


def of_children(server: EmbeddedPostgres) -> set[int]:
    return set(server.children())


def lives(pid: int) -> bool:
    """Whether a process runs; one that ended and was never waited for has no command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def states(pids: set[int]) -> set[str]:
    """Of those that have not ended: a worker of the server's may end at any time."""
    found = set()
    for pid in pids:
        with suppress(FileNotFoundError):
            found.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
    return found


def test_it_runs_as_another_user_freezes_as_a_whole_and_outlives_a_kill(
    server: EmbeddedPostgres,
) -> None:
    server.open()
    address, marker = server.address, server._data_dir / "marker"
    if os.geteuid() == 0:
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
    marker.touch()
    children = of_children(server)
    assert children
    processes.freeze_tree(server.pid)
    assert states({server.pid, *children}) <= {"T", "Z"}
    processes.thaw_tree(server.pid)
    assert "T" not in states({server.pid, *children})
    server.kill()
    assert not connects(server.port)
    assert not any(map(lives, children))
    again = EmbeddedPostgres(server.state_dir)
    again.open()
    try:
        assert again.address == address
        assert marker.exists()
        processes.freeze_tree(again.pid)
    finally:
        again.close()
    again.remove_data()
    assert not again._data_dir.exists()


def test_the_programs_of_the_lock_file_run_where_debians_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path / "nothing")
    assert find_binaries() == unpacked()
    server = EmbeddedPostgres(tmp_path / "state")
    server.open()
    try:
        program = f"{unpacked()}/postgres"
        assert os.fsencode(program) in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    finally:
        server.close()
        server.remove_data()
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert "(PostgreSQL) 17." in said.stdout


def test_a_machine_for_which_there_is_none_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path)
    monkeypatch.setattr(postgres.platform, "machine", lambda: "riscv64")
    with pytest.raises(PostgresMissing, match=r"riscv64.*Debian's package is 'postgresql'"):
        find_binaries()


def test_debians_newest_programs_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path)
    for version in ("9.6", "15", "13"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "initdb").touch()
    assert find_binaries() == tmp_path / "15" / "bin"
