import os
import shutil
import signal
from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.acceptance import processes
from tests.support.failpoints import ACTIONS, MAKERS, PLACES, VARIABLE, failpoint, install
from tests.support.patience import until
from tests.support.python import run_python

ROOT = Path(__file__).parents[3]
PASSES = """
import sys
from tests.support.failpoints import failpoint
at = failpoint(sys.argv.pop(1))
for place in sys.argv[1:]:
    at(place)
    print(place, flush=True)
"""
STARTS_A_CHILD = """
import os, subprocess, sys
from tests.support.failpoints import failpoint
at = failpoint(sys.argv.pop(1))
no = subprocess.DEVNULL
child = subprocess.Popen([sys.argv[1], "60"], stdout=no, stderr=no)
while not os.path.realpath(f"/proc/{child.pid}/exe").endswith("/" + os.path.basename(sys.argv[1])):
    pass
print(child.pid, flush=True)
at("sink_before_commit")
child.wait()
print("goes on", flush=True)
"""


def run(script, wanted, *words):
    ended = run_python(script, wanted, *words, check=False, cwd=ROOT)
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
    at = failpoint("sink_before_commit:2:raise")
    at("sink_before_commit")
    with pytest.raises(RuntimeError, match="sink_before_commit"):
        at("sink_before_commit")
    at("sink_before_commit")


def test_failpoint_sends_sigterm_and_goes_on():
    heard = "\nimport signal; signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))\n"
    script = heard + PASSES
    code, printed, _ = run(script, "offset_stored:1:term", "offset_stored", "offset_stored")
    assert code == 0
    assert printed == ["told", "offset_stored", "offset_stored"]


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
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
            assert processes.lives(child)
        else:
            until("it has ended", lambda: not processes.lives(child), 10)
    finally:
        if processes.lives(child):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "wanted",
    ["zk_after_write", "nowhere:1:kill", "zk_after_write:0:kill", "zk_after_write:x:kill",
     "zk_after_write:1:hug", "zk_after_write:1:kill:2", "sink_inside_commit:1:raise",
     "offset_after_store:1:raise"],
)  # fmt: skip
def test_invalid_failpoint_is_an_error(wanted):
    with pytest.raises(ValueError, match=VARIABLE) as raised:
        failpoint(wanted)
    assert all(each in str(raised.value) for each in (*PLACES, *ACTIONS))


def test_what_is_made_after_the_installation_passes_places(monkeypatch):
    makers = {path: resolve_name(path) for path in MAKERS}
    for path, maker in makers.items():
        monkeypatch.setattr(path, maker)  # so that it comes back
    environment = {VARIABLE: "own_place:1:kill"}
    install(environment)
    assert not any(resolve_name(path) is maker for path, maker in makers.items())
    assert environment == {}, "a process that this one starts would be hit"
