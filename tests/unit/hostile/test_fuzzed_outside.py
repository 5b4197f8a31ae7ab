import http.client
import json
import socket
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.cli.common import describe
from service.config.settings import Config, load
from service.dead_letters.printable import header_text, value_lines
from service.dead_letters.stored import (
    MARK,
    ForeignMessage,
    StoredDeadLetter,
    StoredNotice,
    collect_marks,
    read_message,
)
from service.errors import BadConfig
from service.observability.tracing import parents_in
from sinks.kafka.dead_letter_sink import ORIGIN_OFFSET, REPLAYS, TOPIC, VALUE_SHA256, VALUE_SIZE
from tests.support.dead_letters import stored_message
from tests.support.patience import seconds
from tests.unit.service.test_http import server_on

NAMES = [
    TOPIC, "headrace.partition", "headrace.offset", "headrace.timestamp_ms", "headrace.attempts",
    "headrace.failed_at_ms", "headrace.noticed_at_ms", "headrace.reason", ORIGIN_OFFSET, REPLAYS,
    VALUE_SHA256, VALUE_SIZE, MARK, "traceparent", "tracestate",
]  # fmt: skip
VALUES = [
    None, b"", b"5", b"-1", b"9" * 5_000, b"\xff", b"\xd9\xa3", b"1e5", b"0x5", b" 5", b"5\n",
    b"[" * 100_000, b'{"kind":"replayed"}',
    b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01",
]  # fmt: skip
HEADERS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from(NAMES), st.text(max_size=20)),
        st.one_of(st.sampled_from(VALUES), st.binary(max_size=100)),
    ),
    max_size=12,
)
StoredMessage = stored_message
WHOLE = [(name, b"5") for name in NAMES if name != "headrace.noticed_at_ms"]


@given(HEADERS, st.sampled_from(VALUES))
@example(WHOLE, b"{}")
@example([(TOPIC, b"t"), *((name, b"9" * 5_000) for name in NAMES[1:6])], b"{}")
def test_a_message_of_the_dead_letter_topic_is_a_letter_or_something_else(headers, value):
    message: Any = StoredMessage(headers, content=value)
    assert isinstance(read_message(message), StoredDeadLetter | StoredNotice | ForeignMessage)
    collect_marks([message])


@given(st.lists(st.one_of(st.none(), HEADERS), max_size=5))
def test_headers_of_any_bytes_are_a_parent_or_none(headers):
    found = parents_in(headers)
    assert set(found) <= set(range(len(headers)))


@given(st.one_of(st.binary(max_size=300), st.sampled_from([each or b"" for each in VALUES])))
def test_any_value_is_shown_in_lines_that_print(value):
    for line in [*value_lines(value, 200), header_text(value)]:
        assert line.isprintable()


GOOD = """[kafka]
"bootstrap.servers" = "a:1"
[zookeeper]
hosts = "b:2"
[pipeline]
name = "orders"
start_from = { timestamp_ms = 5 }
[spark.conf]
"spark.master" = "local[1]"
[tracing]
endpoint = "http://c:4318/v1/traces"
"""
PARTS = [
    "[" * 5_000, "{" * 5_000, "a." * 1_000 + "b=1\n", "9" * 5_000, "nan", "inf", "-1", "0x_", "'''",
    '"', "\\ud800", "\x00", "\ufeff", "[kafka]\n", "[[pipeline]]\n", "name = []\n", "true",
    "0x" + "f" * 5_000, "1979-05-27", "=", "\n", "x" * 70_000, "../..", "\x1b[31m",
]  # fmt: skip


@st.composite
def damaged_toml(draw):
    text = GOOD
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, len(text)))
        end = first + draw(st.integers(0, 12))
        text = text[:first] + draw(st.sampled_from(PARTS)) + text[end:]
    return text


@settings(max_examples=200)
@given(st.one_of(damaged_toml(), st.text(max_size=200)))
@example(GOOD.replace('"b:2"', "9" * 5_000))
@example(GOOD.replace('"b:2"', "0x" + "f" * 5_000))
@example(GOOD.replace('"orders"', "0x" + "f" * 5_000))
@example(GOOD.replace("timestamp_ms = 5", "timestamp_ms = 0x" + "f" * 5_000))
@example(GOOD.replace('"local[1]"', "0x" + "f" * 5_000))
@example(GOOD + "[retries]\nlimit = 0x" + "f" * 5_000)
@example(GOOD + "[retries]\nlimit = -0x" + "f" * 5_000)
@example(GOOD + "[retries]\nfirst_delay_seconds = 0x" + "f" * 5_000)
def test_a_configuration_is_taken_or_refused_in_one_line(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    said = ""
    try:
        assert isinstance(load(path), Config)
    except BadConfig as error:
        said = describe(error)
    assert said.isprintable()


@pytest.mark.parametrize("part", PARTS, ids=lambda part: repr(part[:12]))
@pytest.mark.parametrize(
    "name", ["SPARK__CONF", "KAFKA", "PIPELINE__START_FROM", "PIPELINE__NAME", "RETRIES__LIMIT"]
)
def test_a_variable_is_taken_or_refused_in_one_line(name, part, monkeypatch):
    part = part.replace("\x00", "")  # no variable can hold it
    tables = (
        '{"a":' * 5_000,
        f'{{"a": {"9" * 5_000}}}',
        f'{{"bootstrap.servers": {json.dumps(part)}}}',
    )
    for value in (part, *tables):
        monkeypatch.setenv(f"HEADRACE_{name}", value)
        said = ""
        try:
            load(None, {"kafka": {"bootstrap.servers": "a:1"}, "zookeeper": {"hosts": "b:2"}})
        except BadConfig as error:
            said = describe(error)
            assert said.isprintable()


END = b" HTTP/1.1\r\n\r\n"
REQUESTS = [
    b"GET /health/live" + END, b"GET " + b"/" * 70_000 + END, b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 2_000, b"\x16\x03\x01\x02\x00\x01", b"\x00" * 100,
    b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"\r\n" * 500,
    b"GET http://[::1/x" + END, b"GET //[" + END, b"GET /../../etc/passwd" + END,
    b"GET /\x1b[31m%00" + END, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /metrics\r\n\r\n",
]  # fmt: skip


@pytest.fixture(scope="module")
def server():
    server = server_on("127.0.0.1")
    server.open()
    yield server
    server.close()


@settings(max_examples=100)
@given(st.one_of(st.sampled_from(REQUESTS), st.binary(max_size=300)))
def test_a_request_of_any_bytes_is_answered_or_cut_off_and_others_go_on(server, data):
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds(10)) as client:
        try:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: client.recv(4_096), b""))
        except OSError:  # it was cut off
            answer = b""
    assert b"Traceback" not in answer
    if answer.startswith(b"HTTP/"):
        assert answer.split()[1] in (b"200", b"400", b"404", b"414", b"431", b"501", b"505")
    good = http.client.HTTPConnection("127.0.0.1", server.port, timeout=seconds(10))
    good.request("GET", "/health/live")
    assert good.getresponse().status == 200
    good.close()
