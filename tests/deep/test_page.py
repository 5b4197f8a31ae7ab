import http.client
import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from service.devservers.process import free_ports
from tests.support.browser import dom
from tests.support.charts import drawn
from tests.support.patience import seconds, until
from tests.support.places import publish

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

FLOW = """
    import time
    from headrace import Record, To, Topology, bolt
    from headrace.sinks import DiscardSink, KafkaDeadLetters

    @bolt
    def parse(record: Record) -> int:
        if record.value == b"bad":
            raise ValueError("<img src=x onerror=alert(1)> is no number")
        return 1

    @bolt
    def check(value: int) -> int:
        time.sleep(0.002)
        return value

    topology = Topology("paged")
    topology.source("TOPIC").then(parse).then(check).into(DiscardSink(), name="counted")
    topology.dead_letters.into(KafkaDeadLetters("TOPIC.dead"))
"""


class Page:
    def __init__(self, port: int, topic: str, kafka: str) -> None:
        self.port, self.topic, self.kafka = port, topic, kafka

    def status(self, path: str = "/status.json") -> dict:
        asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds(10))
        try:
            asked.request("GET", path)
            return json.load(asked.getresponse())
        finally:
            asked.close()

    def publish(self, *values: bytes) -> None:
        publish(self.kafka, self.topic, values, partition=1)


@pytest.fixture
def page(tmp_path, topic, kafka, zookeeper):
    name = topic(partitions=2)
    port = free_ports(1)[0]
    (tmp_path / "flow.py").write_text(textwrap.dedent(FLOW).replace("TOPIC", name))
    (tmp_path / "service.toml").write_text(
        f'[kafka]\nbootstrap.servers = "{kafka.address}"\n'
        f'[zookeeper]\nhosts = "{zookeeper.address}"\n[http]\nport = {port}\n'
    )
    command = [sys.executable, "-m", "headrace", "run", "flow:topology", "--config", "service.toml"]
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env=dict(os.environ))
    shown = Page(port, name, kafka.address)

    def is_up() -> bool:
        try:
            return bool(shown.status()["taken_at"])
        except OSError:
            return False

    try:
        until("it is up", is_up, 120, (tmp_path / "log").read_text)
        yield shown
    finally:
        run.terminate()
        assert run.wait(60) == 0


def test_status_page_shows_steps_partitions_and_failures(page, tmp_path):
    page.publish(*[b"1"] * 3_000, b"bad")
    until("it has failed", lambda: page.status()["failures"], 60)
    shown = dom(f"http://127.0.0.1:{page.port}/", tmp_path / "browser", 100)
    assert int(re.search(r'data-looks="(\d+)"', shown)[1]) >= 2  # it has asked more than once
    for node in (page.topic, "parse", "check", "counted"):
        assert f'data-node="{node}"' in shown
    assert "calls/s" in shown
    assert f'data-partition="{page.topic}[1]"' in shown
    assert "ValueError" in shown
    assert ">ready<" in shown
    # What stands in a record is text, and nothing else.
    assert "&lt;img src=x onerror=alert(1)&gt; is no number" in shown
    assert "<img" not in shown


def test_charts_in_a_browser_show_the_figures_of_the_run(page, tmp_path):
    page.publish(*[b"1"] * 3_000)

    def samples() -> list[dict]:
        return page.status("/history.json")["samples"]

    until("there are samples of commits", lambda: samples() and page.status()["latency"], 60)
    until("there are some more", lambda: len(samples()) > 4, 60)
    shown = dom(f"http://127.0.0.1:{page.port}/", tmp_path / "browser", 100)
    assert ">ready<" in shown  # it says otherwise when the charts cannot be asked for
    charts = drawn(shown)
    for name, key in (
        ("resolved", "resolved_per_second"),
        ("lag", "lag"),
        ("read", "read_per_second"),
    ):
        (line,) = charts.lines[name]
        known = [each for each in samples() if each["at"] <= charts.now]
        assert len(known) - 1 <= len(line) <= len(known)  # one may come while it is drawn
        drawn_of = known[: len(line)]
        top = max(each[key] for each in drawn_of) or 1.0
        wanted = [(charts.now - each["at"], each[key] / top) for each in drawn_of]
        for (ago, share), (drawn_ago, drawn_share) in zip(wanted, line, strict=True):
            assert drawn_ago == pytest.approx(ago, abs=0.2)
            assert drawn_share == pytest.approx(share, abs=0.01)
    assert max(share for _, share in charts.lines["read"][0]) == 1.0
    assert " median " in charts.text["end_to_end"]
