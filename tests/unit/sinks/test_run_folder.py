import os
import signal
import stat
import subprocess
import sys

import pytest

from sinks import run_folder
from sinks.run_folder import RunFolder
from tests.support.patience import seconds

OTHER = """
import subprocess, sys
from pathlib import Path
from sinks.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]), "spool")
(folder.open() / "rows").write_text("rows")
child = None
if sys.argv[2] == "child":
    child = subprocess.Popen(["cat"], pass_fds=(folder.lock,), stdin=subprocess.PIPE)
print(child.pid if child else "", flush=True)
sys.stdin.read()
"""


def started(root, child=""):
    """A process that holds a folder, with what it prints once it does."""
    return subprocess.Popen(
        [sys.executable, "-c", OTHER, str(root), child],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def opened(root):
    folder = RunFolder(root, "spool")
    folder.open()
    return folder


def test_folder_is_private_and_goes_with_close(tmp_path):
    folder = opened(tmp_path / "root")
    for path in (folder.path, folder.path.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    folder.close()
    folder.close()
    assert list((tmp_path / "root").iterdir()) == []
    assert folder.open().is_dir(), "it is made again"
    folder.close()


def test_folder_of_a_killed_process_is_removed_and_of_a_live_one_kept(tmp_path):
    process = started(tmp_path)
    process.stdout.readline()
    opened(tmp_path).close()
    assert len([*tmp_path.glob("*/files/*")]) == 1
    process.kill()
    process.communicate(timeout=seconds(10))
    opened(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_folder_is_kept_while_a_child_with_the_lock_lives(tmp_path):
    process = started(tmp_path, "child")
    child = int(process.stdout.readline())
    os.kill(child, signal.SIGSTOP)  # else it ends with its parent, whose pipe it reads
    process.kill()
    process.wait(seconds(10))
    opened(tmp_path).close()
    assert len([*tmp_path.glob("*/files/*")]) == 1
    os.kill(child, signal.SIGKILL)
    process.communicate(timeout=seconds(10))  # until it has let go of the standard output
    opened(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("days", [0, 2])
def test_folder_of_another_host_is_kept_for_a_day(days, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run_folder.socket, "gethostname", lambda: "other")
        process = opened(tmp_path)
    process._close_lock()  # as a file system does that shares no locks
    age = process.path.stat().st_mtime - days * 86400
    os.utime(process.path, (age, age))
    opened(tmp_path).close()
    assert process.path.exists() == (days == 0)


def test_folders_that_are_none_of_ours_are_kept(tmp_path):
    for name in ("spool-backup", "spool-x-0123", "orders"):
        (tmp_path / name / "files").mkdir(parents=True)
        os.utime(tmp_path / name / "files", (0, 0))
    (tmp_path / "spool-link").symlink_to(tmp_path / "orders")
    opened(tmp_path).close()
    assert {path.name for path in tmp_path.iterdir()} == {
        "spool-backup", "spool-x-0123", "orders", "spool-link",
    }  # fmt: skip
