import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sinks.errors import SparkStartFailed
from sinks.run_folder import RunFolder
from sinks.spark.driver import SparkDriver
from sinks.spark.jvm import Jvm
from tests.support.patience import seconds

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_spark")]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # PySpark leaves a dead child's pipe
def test_a_spark_that_cannot_start_says_why():
    driver = SparkDriver("test", {"spark.master": "nonsense://x"})
    with pytest.raises(SparkStartFailed, match=r"did not start:.* Master must") as caught:
        driver.open()
    assert "\n" not in str(caught.value)
    driver.close()
    del caught
    gc.collect()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # PySpark leaves a dead child's pipe
def test_a_spark_that_hangs_while_it_starts_is_killed(tmp_path, monkeypatch):
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    submit.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SparkStartFailed, match=r"did not start within 0\.5 seconds"):
        Jvm.start("test", {}, [], timeout_seconds=0.5)
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
    gc.collect()


PROGRAM = """
import os, signal, sys, threading
from sinks.errors import SparkDied
from sinks.spark.driver import SparkDriver
interrupted = threading.Event()
signal.signal(signal.SIGINT, lambda *_: interrupted.set())
driver = SparkDriver("test", {"spark.driver.memory": "512m"})
driver.open()
os.killpg(0, signal.SIGINT)  # what Ctrl-C in a terminal does
assert interrupted.wait(10), "our own handler was replaced"
assert driver.run(lambda session: session.range(10).count(), group="g") == 10
assert driver.restarts == 0
print("pid", driver._jvm.process.pid, flush=True)
if sys.argv[1] == "close":
    asked = threading.Event()
    def wait(session):
        asked.set()
        session._jvm.java.lang.Thread.sleep(600_000)
    def run():
        try:
            driver.run(wait, group="wait")
        except SparkDied:
            print("cut off", flush=True)
    thread = threading.Thread(target=run)
    thread.start()
    assert asked.wait(10)
    driver.close()
    thread.join(10)
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_jvm_ignores_ctrl_c_and_ends_with_its_owner(ending, tmp_path):
    """What is left in its folder, the next run removes."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, ending],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        out, err = process.communicate(timeout=seconds(90))
    assert process.returncode == (0 if ending == "close" else -signal.SIGKILL), err
    assert err == ""  # py4j tells of no call that the close cut off
    assert ("cut off" in out) == (ending == "close")
    pid = int(out.split("pid ")[-1].split()[0])
    ended = threading.Event()
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists():
            break
        ended.wait(0.1)
    else:
        pytest.fail(f"the JVM {pid} outlived its owner")
    left = [path for path in tmp_path.iterdir() if path.name.startswith("headrace-spark-")]
    assert len(left) == (1 if ending == "kill" else 0)
    folder = RunFolder(tmp_path, "headrace-spark")
    folder.open()
    assert [path for path in left if path.exists()] == []
    folder.close()
