import os
import shutil
import signal
from pathlib import Path

import pytest

from headrace.sinks import MemorySink
from service.errors import BadConfig
from service.failpoints import ACTIONS, PLACES, VARIABLE, FailpointReached, failpoints, with_places
from tests.support.patience import until
from tests.support.python import run_python
from topology.sink import Batch, Fence, Share

ROOT = Path(__file__).parents[3]
PASSES = """
import os, sys
from service.failpoints import failpoints
at = failpoints(os.environ)
for place in sys.argv[1:]:
    at(place)
    print(place, flush=True)
"""
STARTS_A_CHILD = """
import os, subprocess, sys
from service.failpoints import failpoints
at = failpoints(os.environ)
no = subprocess.DEVNULL
child = subprocess.Popen([sys.argv[1], "60"], stdout=no, stderr=no)
while not os.path.realpath(f"/proc/{child.pid}/exe").endswith("/" + os.path.basename(sys.argv[1])):
    pass
print(child.pid, flush=True)
at("sink_before_commit")
child.wait()
print("goes on", flush=True)
"""
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


def run(script, wanted, *words):
    environment = {**os.environ, VARIABLE: wanted}
    ended = run_python(script, *words, check=False, cwd=ROOT, env=environment)
    return ended.returncode, ended.stdout.split("\n")[:-1], ended.stderr


def test_failpoint_kills_at_the_nth_pass():
    passed = ["zk_after_write", "sink_after_commit", "zk_after_write", "zk_after_write"]
    code, printed, errors = run(PASSES, "zk_after_write:2:kill", *passed)
    assert code == -signal.SIGKILL
    assert printed == passed[:2]
    assert '{"event": "failpoint", "place": "zk_after_write"}' in errors


def test_failpoint_inside_a_commit_kills_during_it():
    script = PASSES + "\nimport time\ntime.sleep(60)\n"
    code, printed, _ = run(script, "sink_inside_commit:1:kill", "sink_before_commit")
    assert code == -signal.SIGKILL
    assert printed in (["sink_before_commit"], [])


def test_failpoint_raises_once():
    at = failpoints({VARIABLE: "sink_before_commit:2:raise"})
    at("sink_before_commit")
    with pytest.raises(FailpointReached, match="sink_before_commit"):
        at("sink_before_commit")
    at("sink_before_commit")


def test_failpoint_sends_sigterm_and_goes_on():
    heard = "\nimport signal; signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))\n"
    script = heard + PASSES
    code, printed, _ = run(script, "offset_stored:1:term", "offset_stored", "offset_stored")
    assert code == 0
    assert printed == ["told", "offset_stored", "offset_stored"]


@needs_proc
@pytest.mark.parametrize("action", ["kill", "kill-jvm", "kill-python"])
def test_failpoint_kills_java_as_its_action_says(action, tmp_path):
    java = tmp_path / "java"  # by its executable's name
    shutil.copy(shutil.which("sleep") or "sleep", java)
    code, printed, _ = run(STARTS_A_CHILD, f"sink_before_commit:1:{action}", str(java))
    child = int(printed[0])
    try:
        assert (code == 0) is (action == "kill-jvm")
        assert printed[1:] == (["goes on"] if action == "kill-jvm" else [])
        if action == "kill-python":
            assert _runs(child)
        else:
            _wait_for_its_end(child)
    finally:
        if _runs(child):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "wanted",
    ["zk_after_write", "nowhere:1:kill", "zk_after_write:0:kill", "zk_after_write:x:kill",
     "zk_after_write:1:hug", "zk_after_write:1:kill:2", "sink_inside_commit:1:raise",
     "offset_after_store:1:raise"],
)  # fmt: skip
def test_invalid_failpoint_is_an_error(wanted):
    with pytest.raises(BadConfig, match=VARIABLE) as raised:
        failpoints({VARIABLE: wanted})
    assert all(each in raised.value.allowed for each in (*PLACES, *ACTIONS))


def _wait_for_its_end(pid):
    until("it has ended", lambda: not _runs(pid), 10)


def _runs(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def staged_and_committed(sink):
    sink.fence([Fence("orders[0]", 1)])
    share = Share("orders[0]", 1, 1, 1, 1, 2, "0" * 32, 1)
    sink.commit(sink.stage(Batch(1, [["row"]], 1, (share,))))


def test_sink_passes_its_failpoints_in_order():
    passed, sink = [], MemorySink("rows")
    staged_and_committed(with_places(sink, passed.append))
    assert passed == [
        "sink_before_fence", "sink_after_fence", "sink_before_stage", "sink_before_commit",
        "sink_after_commit",
    ]  # fmt: skip
    assert sink.rows == ["row"]
    assert with_places(sink, passed.append).name == "rows"
    assert with_places(sink, failpoints({})) is sink
