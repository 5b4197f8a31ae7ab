import logging
import socket
import threading
import time

import numpy as np
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from pydantic import ValidationError
from structlog.testing import capture_logs

from partition.records import Chunk, Partition
from service.config.settings import TracingConfig
from service.observability.tracing import Tracing, _SdkWarnings
from tests.support.patience import seconds, slack, until
from topology.record import HeldMessage


@pytest.mark.slow
def test_silent_collector_delays_nothing():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes a connection, and that is all
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        config = TracingConfig(endpoint=endpoint, sample_ratio=1.0)
        exporter = OTLPSpanExporter(endpoint, timeout=seconds(5.0))
        tracing = Tracing(config, "orders", np.random.default_rng(1), exporter)
        tracing.open()
        message = HeldMessage(b"x", None, "t", 0, 0, (0, 0), None)
        started = time.monotonic()
        for first in range(0, 10_000, 1_000):  # more than the queue holds
            record_ids = np.arange(first, first + 1_000)
            chunk = Chunk(Partition("t", 0), record_ids, [message] * 1_000)
            tracing.traces.chunk_emitted(chunk, record_ids)
            tracing.traces.records_resolved(record_ids)
        assert time.monotonic() - started < slack(4.0)  # before the first request's deadline
        started = time.monotonic()
        tracing.close(0.2)
        assert time.monotonic() - started < slack(3.0)
    exporter.shutdown()  # else it tries for half a minute, beside other tests
    threads = ("tracing-close", "OtelBatchSpanRecordProcessor")
    until("its threads end", lambda: not any(t.name in threads for t in threading.enumerate()))


def test_what_the_sdk_complains_of_is_told_once_a_minute():
    now = [0.0]
    failure_log = _SdkWarnings(lambda: now[0])
    # an exporter that another test closed may still be trying
    failure_log.addFilter(lambda record: record.name == "opentelemetry.sdk.test")
    failure_log.listen()
    try:
        with capture_logs() as logs:
            for second in range(0, 90, 1):
                now[0] = float(second)
                logging.getLogger("opentelemetry.sdk.test").warning("failed %s", second)
    finally:
        failure_log.stop()
    assert [(line["event"], line["text"], line["others"]) for line in logs] == [
        ("tracing_trouble", "failed 0", 0),
        ("tracing_trouble", "failed 60", 59),
    ]


def test_the_headers_are_read_in_pairs_and_are_secrets():
    config = TracingConfig.model_validate({"headers": "x-token=canary-4711, x-tenant=me=you"})
    assert config.pairs() == {"x-token": "canary-4711", "x-tenant": "me=you"}
    assert "canary-4711" in config.secrets()
    assert "canary-4711" not in repr(config)


WRONG = [
    {"endpoint": "collector:4318"}, {"endpoint": "http://user:pass@collector:4318"},
    {"sample_ratio": 1.5}, {"headers": "=x"},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValidationError):
        TracingConfig.model_validate(wrong)
