"""One commit at a time on a table of a local file system."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sinks.lock import table_lock
from tests.support.patience import seconds
from topology.errors import SinkBusy


def test_one_holds_it_and_the_others_wait(tmp_path: Path) -> None:
    entered = threading.Event()
    order: list[str] = []

    def second() -> None:
        with table_lock(tmp_path, 30):
            order.append("second")
            entered.set()

    with table_lock(tmp_path, 0):
        thread = threading.Thread(target=second)
        thread.start()
        order.append("first")
    assert entered.wait(seconds(30))
    thread.join()
    assert order == ["first", "second"]


def test_whoever_waits_too_long_comes_later(tmp_path: Path) -> None:
    pauses: list[float] = []
    with table_lock(tmp_path, 0), pytest.raises(SinkBusy), table_lock(tmp_path, 0, pauses.append):
        pass
    with table_lock(tmp_path, 0):
        pass
    assert pauses == []


def test_an_error_within_lets_it_go(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), table_lock(tmp_path, 0):
        raise RuntimeError
    with table_lock(tmp_path, 0):
        pass


PROGRAM = """
import sys
from pathlib import Path
from sinks.lock import table_lock
with table_lock(Path(sys.argv[1]), 0):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_held_apart_also_frozen_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SinkBusy), table_lock(tmp_path, 0):
            pass
        other.send_signal(signal.SIGSTOP)
        with pytest.raises(SinkBusy, match="another process has held"), table_lock(tmp_path, 0):
            pass
        other.kill()
        other.wait()
        with table_lock(tmp_path, 0):
            pass
