"""What Spark's Kafka source is told of ranges, and of librdkafka's properties."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import SinkFailed
from sinks.spark.kafka_source import KafkaRange, java_properties, read_ranges
from topology.spark_step import KAFKA_COLUMNS


class Reader:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.read = self

    def format(self, name: str) -> "Reader":
        self.told["format"] = name
        return self

    def options(self, **options: Any) -> "Reader":
        self.told |= options
        return self

    def option(self, name: str, value: Any) -> "Reader":
        self.told[name] = value
        return self

    def load(self) -> Any:
        return SimpleNamespace(select=lambda *names: names)


def test_ranges_are_told_by_topic_and_partition() -> None:
    reader = Reader()
    ranges = [KafkaRange("a", 1, 5, 9), KafkaRange("b", 0, 0, 2), KafkaRange("a", 0, 3, 4)]
    made = read_ranges(reader, {"bootstrap.servers": "k:9"}, ranges, tasks=4)
    assert made == tuple(KAFKA_COLUMNS.names)
    told = reader.told
    assert json.loads(told["assign"]) == {"a": [0, 1], "b": [0]}
    assert json.loads(told["startingOffsets"]) == {"a": {"1": 5, "0": 3}, "b": {"0": 0}}
    assert json.loads(told["endingOffsets"]) == {"a": {"1": 9, "0": 4}, "b": {"0": 2}}
    assert (told["format"], told["failOnDataLoss"], told["minPartitions"]) == ("kafka", "true", 4)
    assert told["kafkaConsumer.pollTimeoutMs"] == "30000"  # Promise 10: two minutes are Spark's own
    assert told["kafka.bootstrap.servers"] == "k:9"
    assert told["kafka.isolation.level"] == "read_committed"


def test_properties_have_the_names_of_javas_client() -> None:
    found = java_properties(
        {
            "metadata.broker.list": "k:9",
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": 'a"b\\c',
            "fetch.wait.max.ms": 50,
            "isolation.level": "read_uncommitted",
            "check.crcs": False,
            "queued.min.messages": 1,
            "group.id": "mine",
        }
    )
    assert found == {
        "bootstrap.servers": "k:9",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="a\\"b\\\\c";',
        "fetch.max.wait.ms": "50",
        "isolation.level": "read_uncommitted",
        "check.crcs": "false",
        "max.poll.records": "20000",
        "group.id": "mine",
    }


def test_certificates_are_sent_as_texts(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"the {name}")
    found = java_properties(
        {
            "ssl.ca.location": str(tmp_path / "ca"),
            "ssl.certificate.location": str(tmp_path / "cert"),
            "ssl.key.location": str(tmp_path / "key"),
            "ssl.key.password": "secret",
        }
    )
    assert {name: text for name, text in found.items() if name.startswith("ssl.")} == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "the ca",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "the cert",
        "ssl.keystore.key": "the key",
        "ssl.key.password": "secret",
    }
    assert java_properties({"ssl.ca.pem": "x"})["ssl.truststore.certificates"] == "x"


@pytest.mark.parametrize(("said", "meant"), [("none", ""), ("https", "https")])
def test_java_has_no_word_for_a_name_in_a_certificate_that_nobody_compares(
    said: str, meant: str
) -> None:
    name = "ssl.endpoint.identification.algorithm"
    assert java_properties({name: said})[name] == meant


@pytest.mark.parametrize("name", ["ssl.ca.location", "ssl.key.location"])
def test_a_certificate_that_is_no_file_of_text_is_refused_by_its_property(
    name: str, tmp_path: Path
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x80")
    for place in (tmp_path / "none", tmp_path, binary):
        with pytest.raises(SinkFailed, match=rf"'{name}': found {re.escape(str(place))}, .* PEM"):
            java_properties({name: str(place)})


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"ssl.keystore.location": "x"}, r"'ssl.keystore.location': .* no such property"),
        ({"enable.ssl.certificate.verification": False}, "no such property"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.username": "x"}, "found OAUTHBEARER; .* PLAIN"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_name(
    properties: dict[str, Any], said: str
) -> None:
    with pytest.raises(SinkFailed, match=said):
        java_properties(properties)
