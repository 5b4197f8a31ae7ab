"""The `headrace` command with real servers, as a user runs it: in a process of its own."""

import json
import os
import re
import signal
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import Limit, seconds, slack
from tests.support.places import Folder, ended, publish, started

pytestmark = pytest.mark.integration

NOBODY = "127.0.0.1:1"  # a port where nothing listens
CHECK = ("check", "flow:topology")
RUN = ("run", "flow:topology", "--until-caught-up", "--json")


@pytest.fixture
def place(tmp_path, topic, kafka, zookeeper):
    return Folder(tmp_path, topic(), kafka.address, zookeeper.address)


@pytest.fixture
def send(place, kafka):
    return lambda *values: publish(kafka.address, place.name, values)


def events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The events among the lines; librdkafka's producers print some of their own (`%4|…`)."""
    return (json.loads(line) for line in lines if not line.startswith("%"))


def verdicts(out: str) -> dict[str, str]:
    return {line[5:18].strip(): line[:5].strip() for line in out.splitlines()}


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def servers_of(state_dir: Path) -> list[int]:
    texts = (path.read_text() for path in sorted(state_dir.glob("*/*.pid")))
    return [int(text) for text in texts if text]  # empty: it is about to start


def test_check_says_what_is_there_and_which_topic_is_missing(place, topic):
    name = topic(partitions=3)
    code, _, out, err = place.headrace(*CHECK, TOPIC=name)
    assert code == 0, out + err
    assert verdicts(out) == dict.fromkeys(
        ("config", "kafka", "topic", "zookeeper", "sink", "dead letters"), "OK"
    )
    assert f"{name}: 3 partitions" in out
    code, facts, _, _ = place.headrace(*CHECK, "--json", TOPIC="not-there")
    (bad,) = [check for check in facts["checks"] if not check["ok"]]
    assert (code, facts["ok"], bad["name"], "not-there" in bad["detail"]) == (
        1, False, "topic", True,
    )  # fmt: skip


def test_check_of_servers_that_are_down_ends_soon_and_names_them(place):
    place.kafka = place.zookeeper = NOBODY
    place.configure()
    started = time.monotonic()
    code, _, out, err = place.headrace(*CHECK)
    assert time.monotonic() - started < slack(40)
    assert code == 1
    assert "Traceback" not in out + err
    assert verdicts(out) == {
        "config": "OK",
        "kafka": "FAIL",
        "topic": "FAIL",
        "zookeeper": "FAIL",
        "sink": "OK",
        "dead letters": "FAIL",
    }


@pytest.mark.parametrize("writes", [True, False])
def test_check_tries_what_a_table_needs_of_the_warehouses_store(place, seaweed, writes):
    storage = seaweed.storage("checked", writes=writes)
    code, _, out, err = place.headrace(
        *CHECK,
        HEADRACE_STORAGE__WAREHOUSE=storage.warehouse,
        HEADRACE_STORAGE__ENDPOINT=storage.endpoint,
        **{f"HEADRACE_STORAGE__{name.upper()}": each for name, each in storage.secrets.items()},
    )  # fmt: skip
    assert code == (0 if writes else 1), out + err
    assert verdicts(out)["storage"] == ("OK" if writes else "FAIL")
    done = "conditional overwrite refused, delete" if writes else "cannot write: "
    assert f"{storage.warehouse}: " in out
    assert done in out


def test_status_shows_committed_log_end_and_lag(place, send):
    send(b"1", b"2", b"skip")
    account = place.run()
    assert (account["read"], account["rows"], account["filtered"]) == (3, 2, 1)
    send(b"3")
    facts = place.facts("status", "flow:topology")["partitions"][f"{place.name}[0]"]
    assert (facts["committed"], facts["log_end"], facts["lag"]) == (3, 4, 1)


def test_running_service_shows_what_is_completed_and_sigterm_drains_it(place, send):
    """Promise 16: SIGTERM drains, commits, and exits with 0."""
    name = place.name
    place.configure("[http]\nport = 0\n[pipeline]\ncommit_interval_seconds = 600\n")
    send(b"1", b"2", b"bad")
    with place.started("run", "flow:topology", "--json") as process:
        port = None
        for event in events(process.stderr):
            port = event.get("port", port)
            if event["event"] == "service_started":
                break
        ends = Limit(60)
        completed = None
        while completed != 3 and not ends.passed:
            facts = place.facts("status", "flow:topology", HEADRACE_HTTP__PORT=str(port))
            completed = facts["partitions"][f"{name}[0]"]["last_completed"]
        assert completed == 3
        out, _ = ended(process, signal.SIGTERM)
    assert process.returncode == 0
    account = json.loads(out.splitlines()[-1])
    assert account["caught_up"] is False
    assert account["dead_lettered"] == 1
    assert account["partitions"][f"{name}[0]"]["committed"] == 3


def fill(pid):
    """Leave no room in the pipe that is a process's standard error, before it writes any."""
    pipe = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    try:
        for size in (4096, 1):
            with suppress(BlockingIOError):
                while True:
                    os.write(pipe, b"x" * size)
    finally:
        os.close(pipe)


@pytest.mark.parametrize("reader", ["gone", "stuck"])
def test_the_pipeline_outlives_the_reader_of_its_logs(place, send, reader):
    """O05: a closed pipe behind the logs, or a full one, costs the logs, not the run."""
    place.configure("[logs]\nlevel = 'debug'\n")
    send(*[b"1"] * 100)
    with place.started(*RUN) as process:
        if reader == "gone":
            process.stderr.close()
        else:
            fill(process.pid)
        account = json.loads(process.stdout.read().splitlines()[-1])
        assert process.wait(seconds(60)) == 0
        if reader == "stuck":
            assert set(process.stderr.read()) == {"x"}
    assert account["read"] == 100


def test_dev_up_prints_addresses_and_stops_on_ctrl_c(tmp_path):
    name = f"t-{uuid.uuid4().hex[:8]}"
    with started(tmp_path, "dev", "up", "--json", "--topic", name) as process:
        facts = json.loads(process.stdout.readline())
        publish(facts["kafka"], name, [b"1"])
        assert re.fullmatch(r"127\.0\.0\.1:\d+", facts["zookeeper"])
        servers = servers_of(tmp_path / ".headrace")
        assert [is_gone(each) for each in servers] == [False, False]
        out, err = ended(process, signal.SIGINT)
    assert (process.returncode, out) == (0, ""), err
    assert all(map(is_gone, servers))


def test_dev_up_ends_with_1_when_a_server_ends(tmp_path):
    with started(tmp_path, "dev", "up", "--json") as process:
        process.stdout.readline()
        servers = servers_of(tmp_path / ".headrace")
        os.kill(servers[0], signal.SIGKILL)
        _, err = ended(process)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith("headrace: kafka has ended; see ")
    assert all(map(is_gone, servers))


def test_a_run_with_its_own_servers_needs_no_configuration(place):
    folder, command = place.folder, ("run", "flow:topology", "--embedded", "--json")
    code, _, out, err = place.headrace(*command, "--until-caught-up", config=False)
    assert code == 0, err
    (line,) = out.splitlines()
    account = json.loads(line)
    assert (account["read"], account["caught_up"]) == (0, True)
    assert len(account["partitions"]) == 4
    assert {"embedded_server_started", "service_stopped"} <= {
        event["event"] for event in events(err.splitlines())
    }
    assert servers_of(folder / ".headrace") == []

    with started(folder, *command) as process:  # again in the same folder, and stopped
        assert any(event["event"] == "service_started" for event in events(process.stderr))
        servers = servers_of(folder / ".headrace")
        assert len(servers) == 2
        ended(process, signal.SIGTERM)
    assert process.returncode == 0
    assert all(map(is_gone, servers))


@pytest.mark.nightly
def test_a_run_stopped_while_its_servers_start_leaves_none(place):
    folder = place.folder
    with started(folder, "run", "flow:topology", "--embedded") as process:
        pid_file = folder / ".headrace/zookeeper/zookeeper.pid"
        ends = Limit(60)
        while not (pid_file.exists() and pid_file.read_text()) and not ends.passed:
            time.sleep(0.02)
        begun = servers_of(folder / ".headrace")
        out, err = ended(process, signal.SIGTERM)
    assert (process.returncode, out) == (1, "")
    assert err.splitlines()[-1].startswith("headrace: stopped before the run began")
    assert begun
    assert all(map(is_gone, [*begun, *servers_of(folder / ".headrace")]))
