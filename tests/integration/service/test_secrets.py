"""Canaries in the place of every secret: they must turn up nowhere that a run speaks."""

import json
import signal
import subprocess
import textwrap
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support.committed_messages import committed_messages
from tests.support.patience import seconds
from tests.support.places import Folder, ended, publish

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CANARIES = {
    "HEADRACE_KAFKA__SASL_PASSWORD": "canary-of-kafka-4711",
    "HEADRACE_KAFKA__SSL_KEY_PASSWORD": "canary-of-the-key-4712",
    "HEADRACE_TRACING__HEADERS": "x-token=canary-of-traces-4713",
    "HEADRACE_SPARK__CONF__SPARK_HADOOP_FS_S3A_SECRET_KEY": "canary-of-s3-4714",
    "HEADRACE_ZOOKEEPER__PASSWORD__FILE": "canary-of-zookeeper-4715",
    "HEADRACE_STORAGE__ACCESS_KEY_ID": "canary-of-the-store-4717",
    "HEADRACE_STORAGE__SECRET_ACCESS_KEY__FILE": "canary-of-the-store-4718",
    "AWS_SESSION_TOKEN": "canary-of-a-library-4719",
}
OF_CODE = "canary-of-code-4716"  # which only the topology gives, to a sink
FLOW = """
    import os
    from headrace import Hooks, Record, Topology, bolt
    from headrace.sinks import DiscardSink, KafkaDeadLetters

    TOPIC = os.environ["TOPIC"]

    @bolt
    def parse(record: Record) -> int:
        if record.value == b"bad":
            said = "login with {} and {} was refused, so were {} and {}"
            raise OSError(said.format("canary-of-kafka-4711", "canary-of-code-4716",
                "canary-of-the-store-4718", "canary-of-a-library-4719"))
        return 1

    class Careless(Hooks):
        def stopped(self) -> None:
            raise RuntimeError("the token canary-of-traces-4713 has ended")

    topology = Topology(TOPIC)
    topology.source(TOPIC).then(parse).into(DiscardSink(), batch_seconds=0.1)
    secret = {"ssl.key.password": "canary-of-code-4716"}
    letters = KafkaDeadLetters(TOPIC + ".dead", properties=secret)
    topology.dead_letters.into(letters)
    if os.environ.get("CARELESS"):
        topology.hooks(Careless())
"""
CONFIG = """
    [kafka]
    bootstrap.servers = "{kafka}"
    sasl.username = "somebody"
    debug = "conf,broker,security"

    [zookeeper]
    hosts = "{zookeeper}"
    auth = "digest"
    username = "somebody"

    [storage]
    warehouse = "s3://lake"
    endpoint = "http://127.0.0.1:1"

    [retries]
    limit = 1
    initial_seconds = 0.1

    [http]
    port = 0

    [logs]
    level = "debug"

    [tracing]
    endpoint = "http://127.0.0.1:1/v1/traces"
    sample_ratio = 1.0
"""


class Place(Folder):
    """A folder with the flow and its configuration, and an environment full of canaries."""

    def __init__(self, folder: Path, topic: str, kafka: str, zookeeper: str) -> None:
        super().__init__(folder, topic, kafka, zookeeper, FLOW)
        self.environment |= {**CANARIES, "HEADRACE_DEBUG": "1"}
        for name, canary in CANARIES.items():
            if name.endswith("__FILE"):
                (folder / name).write_text(canary)
                self.environment[name] = str(folder / name)

    def configure(self, more: str = "") -> None:
        text = textwrap.dedent(CONFIG).format(kafka=self.kafka, zookeeper=self.zookeeper)
        (self.folder / "service.toml").write_text(text + more)

    def said(self, *words: str, **more: str) -> str:
        with self.started(*words, **more) as process:
            return "".join(ended(process))


class Run:
    """A run that goes on until it is ended; `printed` is what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.printed = ""

    def until(self, event: str) -> dict[str, Any]:
        for line in self._process.stderr:
            self.printed += line
            if line.startswith("{") and (found := json.loads(line))["event"] == event:
                return dict(found)
        pytest.fail(f"it ended before it said {event}:\n{self.printed}")

    def end(self) -> None:
        self.printed += "".join(ended(self._process, signal.SIGTERM))


@pytest.fixture
def place(tmp_path, kafka, zookeeper, topic):
    name = topic()
    kafka.create_topic(f"{name}.dead", 1)
    publish(kafka.address, name, [b"good", b"bad"])
    return Place(tmp_path, name, kafka.address, zookeeper.address)


def check(text: str, *, masked: bool) -> None:
    """See that no canary is in a text; and, with `masked`, that one would have been."""
    for canary in (*CANARIES.values(), OF_CODE):
        value = canary.partition("=")[2] or canary
        assert value not in text, value
    assert "***" in text or not masked


def page(address: str, path: str) -> str:
    connection = HTTPConnection(address, timeout=seconds(30))
    connection.request("GET", path)
    found = connection.getresponse().read().decode()
    connection.close()
    return found


def test_a_run_its_port_and_its_dead_letters_tell_no_secret(place, kafka):
    with place.started("run", "flow:topology") as process:
        run = Run(process)
        address = f"127.0.0.1:{run.until('http_listening')['port']}"
        run.until("step_failing")
        check(Path(f"/proc/{process.pid}/cmdline").read_text(), masked=False)
        while "login" not in page(address, "/status.json"):  # it is drawn a moment later
            continue
        check(page(address, "/status.json"), masked=True)
        for path in ("/", "/metrics", "/health/live", "/health/ready", "/health/startup"):
            check(page(address, path), masked=False)
        run.end()
    check(run.printed, masked=True)
    for spoken in ("conf", "kafka_client_message", "tracing_trouble", "stopped"):
        assert spoken in run.printed
    (letter,) = committed_messages(kafka.address, f"{place.name}.dead")
    reason = dict(letter.headers() or [])["headrace.reason"].decode()
    assert reason == "login with *** and *** was refused, so were *** and ***"
    check(place.said("dead-letters", "list", "flow:topology"), masked=True)
    check(place.said("status", "flow:topology"), masked=False)


def test_record_errors_can_be_hidden_from_the_http_port(place):
    with place.started("run", "flow:topology", HEADRACE_HTTP__SHOW_ERRORS="false") as process:
        run = Run(process)
        address = f"127.0.0.1:{run.until('http_listening')['port']}"
        run.until("step_failing")
        while not json.loads(page(address, "/status.json")).get("failures"):
            continue
        shown = page(address, "/status.json")
        assert "refused" not in shown
        assert json.loads(shown)["failures"][0]["error_class"] == "OSError"
        run.end()
    assert "was refused" in run.printed, "the log has it"


def test_what_ends_a_run_tells_no_secret_in_its_traceback(place):
    said = place.said("run", "flow:topology", "--until-caught-up", CARELESS="yes")
    assert "has ended" in said
    check(said, masked=True)


def test_a_check_of_servers_that_are_away_tells_no_secret(place):
    place.kafka = place.zookeeper = "127.0.0.1:1"
    place.configure()
    said = place.said("check", "flow:topology")
    assert "127.0.0.1:1" in said
    assert "s3://lake: lake/.headrace-check-" in said
    check(said, masked=False)
