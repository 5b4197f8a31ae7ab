import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from service.devservers.server import (
    HOST,
    NotRunning,
    PortTaken,
    ServerFailed,
    StateDirInUse,
    connects,
)
from service.devservers.servers import EmbeddedZooKeeper, four_letters
from tests.acceptance import processes
from tests.support.patience import seconds

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path):
    server = EmbeddedZooKeeper(tmp_path / "state")
    server.open()
    yield server
    server.close()


def lives(pid):
    """Whether a process runs; one that ended and was never waited for has no command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def with_client(server, work):
    client = KazooClient(hosts=server.address, timeout=5)
    client.start(timeout=seconds(10))
    try:
        return work(client)
    finally:
        client.stop()
        client.close()


def test_the_shared_server_answers(zookeeper):
    assert four_letters(zookeeper.port, "ruok") == "imok"
    assert "Mode: standalone" in four_letters(zookeeper.port, "srvr")


def test_data_and_port_outlive_a_close_and_a_kill(server):
    address = server.address
    with_client(server, lambda client: client.create("/kept", b"1"))
    server.close()
    server.close()
    assert not server.running
    with pytest.raises(NotRunning):
        _ = server.pid
    server.open()
    assert server.address == address
    with_client(server, lambda client: client.set("/kept", b"2"))
    server.kill()
    assert not connects(server.port)
    again = EmbeddedZooKeeper(server.state_dir)
    again.open()
    try:
        assert again.address == address
        assert with_client(again, lambda client: client.get("/kept")[0]) == b"2"
    finally:
        again.close()


def test_frozen_server_answers_once_thawed_and_can_be_closed(server):
    processes.freeze(server.pid)
    with socket.create_connection((HOST, server.port), timeout=0.3) as connection:
        connection.sendall(b"ruok")
        with pytest.raises(TimeoutError):
            connection.recv(4)
        processes.thaw(server.pid)
        connection.settimeout(10)
        assert connection.recv(4) == b"imok"
    processes.freeze(server.pid)
    pid = server.pid
    server.close()
    assert not lives(pid)


def test_a_session_of_its_own_keeps_a_terminals_interrupt_away(server):
    assert os.getsid(server.pid) == server.pid


def test_server_that_ends_at_start_shows_the_end_of_its_log(tmp_path):
    server = EmbeddedZooKeeper(tmp_path, properties={"tickTime": "soon"})
    with pytest.raises(ServerFailed) as caught:
        server.open()
    assert "ended with status" in str(caught.value)
    assert "soon" in caught.value.tail
    assert not server.running


def test_a_taken_port_is_an_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr("service.devservers.server._PORT_PATIENCE_SECONDS", 0.1)
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)):
            EmbeddedZooKeeper(tmp_path, port).open()


def test_a_port_lost_between_choice_and_use_is_chosen_again(tmp_path, monkeypatch):
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        real = iter([(taken,), (free := _free_port(),)])
        monkeypatch.setattr("service.devservers.server.free_ports", lambda count: next(real))
        monkeypatch.setattr("service.devservers.server.is_free", lambda port: True)
        server = EmbeddedZooKeeper(tmp_path)
        server.open()
        server.close()
        assert server.port == free


def _free_port():
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


LEAVES_ONE_BEHIND = """
import os, sys
from pathlib import Path
from service.devservers.servers import EmbeddedZooKeeper
server = EmbeddedZooKeeper(Path(sys.argv[1]))
server.open()
print("pid:", server.pid, flush=True)
if sys.argv[2] == "die":
    os._exit(9)
sys.stdin.read()
"""


def start_owner(state_dir, how):
    owner = subprocess.Popen(
        [sys.executable, "-c", LEAVES_ONE_BEHIND, str(state_dir), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path.cwd(),
    )
    for line in owner.stdout:
        if line.startswith("pid:"):
            return owner, int(line.split()[1])
    raise AssertionError("the owner said nothing")


def test_a_server_left_behind_by_a_dead_process_is_replaced(tmp_path):
    owner, left_behind = start_owner(tmp_path, "die")
    with owner:
        pass
    server = EmbeddedZooKeeper(tmp_path)
    server.open()
    try:
        assert server.pid != left_behind
        assert not lives(left_behind)
    finally:
        server.close()


def test_server_of_a_living_owner_is_left_alone(tmp_path):
    owner, pid = start_owner(tmp_path, "live")
    with owner:
        with pytest.raises(StateDirInUse, match=str(owner.pid)):
            EmbeddedZooKeeper(tmp_path).open()
        assert lives(pid)
        owner.stdin.close()
        owner.wait(seconds(30))
    assert not lives(pid)
