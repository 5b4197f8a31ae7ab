import uuid
from typing import Any

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headrace import Record, Reject, Topology, bolt
from headrace.sinks import KafkaDeadLetters, KafkaTopicSink
from service.app import run_pipeline
from service.config.settings import load
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.support.committed_messages import committed_messages
from tests.support.near_a_store import Answer, Replying, serving
from tests.support.patience import seconds

pytestmark = pytest.mark.integration

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01".encode()


class Collector:
    """Takes OTLP over HTTP, and keeps the spans."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[Any] = []
        self.tokens: set[str | None] = set()
        self.services: set[str] = set()

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            said = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(said["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans


@pytest.fixture
def collector():
    made = Collector()

    class Handler(Replying):
        def do_POST(self) -> None:  # noqa: N802 - as its base
            made.tokens.add(self.headers["x-token"])
            made.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(Answer(200))

    with serving(Handler) as url:
        made.endpoint = f"{url}/v1/traces"
        yield made


@bolt
def parse(record: Record) -> bytes:
    if record.value == b"bad":
        raise Reject("it is bad")
    return record.value or b""


def run(
    kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, names: list[str], tracing: dict[str, Any]
):
    source, out, dead = names
    topology = Topology("traced", reliability="exactly-once")
    topology.source(source).then(parse).into(KafkaTopicSink(out, value=bytes), batch_seconds=0.1)
    topology.dead_letters.into(KafkaDeadLetters(dead))
    config = load(
        None,
        {
            "kafka": {"bootstrap.servers": kafka.address},
            "zookeeper": {"hosts": zookeeper.address, "root": f"/{uuid.uuid4().hex[:8]}"},
            "tracing": tracing,
        },
    )
    return run_pipeline(topology, config, until_caught_up=True)


def publish(kafka: EmbeddedKafka, name: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.address})
    producer.produce(name, b"plain")
    producer.produce(name, b"good", headers=[("traceparent", SAMPLED)])
    producer.produce(name, b"bad", headers=[("traceparent", SAMPLED)])
    assert producer.flush(seconds(30)) == 0


def headers(kafka: EmbeddedKafka, name: str) -> dict[bytes, list[Any]]:
    """The trace's headers of a topic's messages, by value."""
    return {
        each.value() or b"": [v for k, v in each.headers() or [] if k == "traceparent"]
        for each in committed_messages(kafka.address, name)
    }


def said(span: Any) -> dict[str, Any]:
    return {each.key: each.value for each in span.attributes}


def test_trace_follows_a_record_to_the_txid_and_next_topic(kafka, zookeeper, topic, collector):
    names = [topic(), topic(), topic()]
    kafka.create_topic(f"{names[1]}.transactions", 1, config={"cleanup.policy": "compact"})
    publish(kafka, names[0])
    tracing = {
        "endpoint": collector.endpoint, "sample_ratio": 0, "service_name": "orders",
        "headers": "x-token=canary-4711",
    }  # fmt: skip
    run(kafka, zookeeper, names, tracing)
    assert collector.tokens == {"canary-4711"}
    assert collector.services == {"orders"}
    records = {
        said(span)["messaging.kafka.offset"].int_value: span
        for span in collector.spans
        if span.name == f"process {names[0]}"
    }
    assert set(records) == {1, 2}
    assert {span.trace_id.hex() for span in records.values()} == {TRACE}
    assert {span.parent_span_id.hex() for span in records.values()} == {PARENT}
    bolts = [span for span in collector.spans if span.name == "bolt parse"]
    assert sorted(said(span)["headrace.outcome"].string_value for span in bolts) == [
        "done",
        "rejected",
    ]
    (write,) = [span for span in collector.spans if span.name.startswith("write ")]
    assert [link.span_id for link in write.links] == [records[1].span_id]
    (txid,) = said(write)["headrace.txids"].array_value.values
    assert txid.string_value.startswith(f"{names[0]}[0]:")
    sent = headers(kafka, names[1])
    assert sent[b"plain"] == []
    assert sent[b"good"] == [f"00-{TRACE}-{records[1].span_id.hex()}-01".encode()]
    (letter,) = [span for span in collector.spans if span.name == f"send {names[2]}"]
    assert letter.parent_span_id == records[2].span_id
    assert headers(kafka, names[2]) == {b"bad": [f"00-{TRACE}-{letter.span_id.hex()}-01".encode()]}
