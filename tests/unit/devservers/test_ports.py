import socket

from service.devservers import server as ports
from service.devservers.server import HOST, connects, free_ports, is_free


def test_free_ports_differ_and_lie_below_those_of_outgoing_connections():
    chosen = free_ports(3)
    assert len(set(chosen)) == 3
    assert all(1024 < port < ports._ephemeral_start() for port in chosen)


def test_a_port_somebody_listens_on_is_neither_free_nor_chosen(monkeypatch):
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(port)
        assert connects(port)
    assert is_free(port)
    assert not connects(port)


def test_without_room_below_the_range_the_system_chooses(monkeypatch):
    monkeypatch.setattr(ports, "_ephemeral_start", lambda: 1024)
    assert len(set(free_ports(2))) == 2
