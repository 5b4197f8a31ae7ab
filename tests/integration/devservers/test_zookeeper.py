import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from service.devservers.process import (
    HOST,
    NotRunning,
    PortInUse,
    ServerFailed,
    StateDirInUse,
    connects,
    free_ports,
)
from service.devservers.servers import EmbeddedZooKeeper
from tests.acceptance import processes
from tests.support.patience import seconds
from tests.support.places import nodes_of

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path):
    server = EmbeddedZooKeeper(tmp_path / "state")
    server.open()
    yield server
    server.close()


def test_data_and_port_survive_close_and_kill(server):
    address = server.address
    assert os.getsid(server.pid) == server.pid, "not in the terminal's session"
    with nodes_of(server) as client:
        client.create("/kept", b"1")
    server.close()
    server.close()
    assert not server.running
    with pytest.raises(NotRunning):
        _ = server.pid
    server.open()
    assert server.address == address
    with nodes_of(server) as client:
        client.set("/kept", b"2")
    server.kill()
    assert not connects(server.port)
    again = EmbeddedZooKeeper(server.state_dir)
    again.open()
    try:
        assert again.address == address
        with nodes_of(again) as client:
            assert client.get("/kept")[0] == b"2"
    finally:
        again.close()


def test_frozen_server_can_be_closed(server):
    pid = server.pid
    processes.freeze(pid)
    with socket.create_connection((HOST, server.port), timeout=0.3) as connection:
        connection.sendall(b"ruok")
        with pytest.raises(TimeoutError):
            connection.recv(4)
    server.close()
    assert not processes.lives(pid)


def test_server_that_ends_at_start_shows_the_end_of_its_log(tmp_path):
    server = EmbeddedZooKeeper(tmp_path, properties={"tickTime": "soon"})
    with pytest.raises(ServerFailed) as caught:
        server.open()
    assert "ended with status" in str(caught.value)
    assert "soon" in caught.value.tail
    assert not server.running


def test_used_port_is_named_and_a_free_one_is_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr("service.devservers.process._PORT_PATIENCE_SECONDS", 0.1)
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken, (free,) = other.getsockname()[1], free_ports(1)
        with pytest.raises(PortInUse, match=str(taken)):
            EmbeddedZooKeeper(tmp_path, taken).open()
        drawn = iter([(taken,), (free,)])
        monkeypatch.setattr("service.devservers.process.free_ports", lambda _: next(drawn))
        monkeypatch.setattr("service.devservers.process.is_free", lambda _: True)
        server = EmbeddedZooKeeper(tmp_path / "other")
        server.open()  # the first port was lost before its use
        server.close()
        assert server.port == free


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


def test_server_of_a_dead_process_is_replaced(tmp_path):
    owner, left_behind = start_owner(tmp_path, "die")
    with owner:
        pass
    server = EmbeddedZooKeeper(tmp_path)
    server.open()
    try:
        assert server.pid != left_behind
        assert not processes.lives(left_behind)
    finally:
        server.close()


def test_server_of_a_living_owner_is_left_alone(tmp_path):
    owner, pid = start_owner(tmp_path, "live")
    with owner:
        with pytest.raises(StateDirInUse, match=str(owner.pid)):
            EmbeddedZooKeeper(tmp_path).open()
        assert processes.lives(pid)
        owner.stdin.close()
        owner.wait(seconds(30))
    assert not processes.lives(pid)
