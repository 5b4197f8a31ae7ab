"""The HTTP port: what it answers, and that no client can block another (O03)."""

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from types import SimpleNamespace

import pytest

from service.errors import EXIT_FAILED, AddressInUse
from service.observability import http_server as server_module
from service.observability.health import Health
from service.observability.http_server import MOST_CONNECTIONS, HttpServer
from tests.support.patience import Limit, seconds, slack

_SECONDS = seconds(10)


FACTS = SimpleNamespace(
    exposition=lambda: b"headrace_x_total 1.0\n", live=lambda: Health(ok=True),
    ready=lambda: Health(ok=False, problems=("Kafka is away",)), json=lambda: b"{}",
    html=lambda: b"<p>", history_json=lambda: b"[]",
)  # fmt: skip


def server_on(host, port=0):
    return HttpServer(host, port, FACTS, FACTS, FACTS)


@pytest.fixture
def server():
    server = server_on("127.0.0.1")
    server.open()
    yield server
    server.close()
    server.close()


def ask(server, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_SECONDS)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def test_each_path_answers_in_its_form(server):
    status, kind, body = ask(server, "/metrics")
    assert (status, body) == (200, "headrace_x_total 1.0\n")
    assert kind.startswith("text/plain; version=")
    assert ask(server, "/metrics?name=x")[0] == 200
    status, kind, body = ask(server, "/health/live")
    assert (status, kind) == (200, "application/json")
    assert json.loads(body) == {"ok": True, "problems": []}
    status, _, body = ask(server, "/health/ready")
    assert (status, json.loads(body)) == (503, {"ok": False, "problems": ["Kafka is away"]})
    assert ask(server, "/status.json", "HEAD")[::2] == (200, "")
    assert ask(server, "/history.json") == (200, "application/json", "[]")
    assert ask(server, "/") == (200, "text/html; charset=utf-8", "<p>")
    assert ask(server, "/status.css")[1] == "text/css; charset=utf-8"
    assert ask(server, "/status.html")[0] == 404  # its charts are missing
    assert ask(server, "/metrics", "POST")[0] == 501


@pytest.mark.parametrize("path", ["/metrics/", "/health", "/favicon.ico", "//["])
def test_an_unknown_path_is_404_and_lists_what_is_allowed(path, server):
    status, _, body = ask(server, path)
    assert status == 404
    assert body.startswith("allowed: /, ")
    assert "/metrics, /health/live, /health/startup, /health/ready" in body


def test_an_address_that_cannot_be_had_is_a_clear_error(server):
    for host, port in (("127.0.0.1", server.port), ("192.0.2.1", 0)):
        second = server_on(host, port)
        with pytest.raises(AddressInUse, match=f"cannot listen on {host}:{port}: ") as caught:
            second.open()
        assert "[http]" in str(caught.value)
        assert caught.value.exit_code == EXIT_FAILED
        second.close()


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=_SECONDS)


def test_slow_clients_block_nobody_and_are_cut_off(server, monkeypatch):
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.5)
    slow = [connect(server) for _ in range(20)]
    for each in slow:
        each.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
    started = time.monotonic()
    assert ask(server, "/metrics")[0] == 200
    assert time.monotonic() - started < slack(2)
    dripping = slow[0]
    ends = Limit(_SECONDS)
    dripping.settimeout(0.05)
    answer = None
    while answer is None and not ends.passed:
        try:
            dripping.sendall(b"x")  # always in time for a time-out per read
            answer = dripping.recv(100)
        except TimeoutError:
            continue
        except OSError:
            answer = b""
    assert answer == b""
    for each in slow:
        each.close()


def test_a_crowd_of_silent_clients_costs_the_oldest_their_place(server):
    crowd = [connect(server) for _ in range(MOST_CONNECTIONS + 10)]
    assert ask(server, "/health/live")[0] == 200
    assert crowd[0].recv(1) == b""
    for each in crowd:
        each.close()


def test_many_scrapes_at_once_are_all_answered(server):
    with ThreadPoolExecutor(10) as scrapers:
        answers = list(scrapers.map(ask, repeat(server, 100), repeat("/metrics")))
    assert [status for status, *_ in answers] == [200] * 100


def test_client_that_goes_away_logs_no_traceback(server, capfd):
    for _ in range(5):
        gone = connect(server)
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        gone.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        gone.close()
    assert ask(server, "/metrics")[0] == 200
    assert "Traceback" not in capfd.readouterr().err
