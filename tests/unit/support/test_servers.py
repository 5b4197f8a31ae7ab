"""Servers that workers share, with one that does nothing but listen."""

import socket
import sys
from contextlib import ExitStack, closing

from service.devservers.process import HOST, EmbeddedServer, connects, free_ports
from tests.support.servers import shared_by_workers

LISTEN = """
import signal, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
signal.pause()
"""


class Listener(EmbeddedServer):
    name = "listener"
    usual = free_ports(1)[0]

    def _prepare(self) -> None:
        pass

    def _command(self) -> list[str]:
        return [sys.executable, "-c", LISTEN, HOST, str(self.port)]

    def _answers(self) -> bool:
        return connects(self.port)


def test_second_worker_attaches_and_the_first_closes_after_it(tmp_path):
    with ExitStack() as first, ExitStack() as second:
        started = first.enter_context(shared_by_workers(tmp_path, Listener))
        attached = second.enter_context(shared_by_workers(tmp_path, Listener))
        assert attached.address == started.address
        assert not attached.running
        second.close()
        assert started.running
    assert not connects(attached.port)


def test_server_that_ended_with_its_worker_is_started_again(tmp_path):
    lost = Listener(tmp_path / "server")
    lost.open()
    (tmp_path / "started").touch()
    lost.kill()  # the worker has crashed, and told nobody
    with shared_by_workers(tmp_path, Listener) as found:
        assert found.running
        assert found.address == lost.address
        assert connects(found.port)
    assert not connects(found.port)
    assert not (tmp_path / "started").exists()


def test_usual_port_is_used_where_it_is_free_and_another_one_beside_whoever_has_it(tmp_path):
    first, second = (Listener(tmp_path / name, usual_port=True) for name in ("first", "second"))
    with closing(first), closing(second):
        first.open()
        second.open()
        assert first.port == Listener.usual != second.port
        first.close()
        second.close()
        second.open()
        assert second.port == Listener.usual, "it is free now"
        first.open()
        assert first.port != Listener.usual
        second.close()
        again = Listener(tmp_path / "second")
        with closing(again), socket.create_server((HOST, Listener.usual)):
            again.open()
            assert again.port != Listener.usual, "it is not waited for"
