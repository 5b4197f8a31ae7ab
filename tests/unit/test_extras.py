"""What is said where an extra is not installed: by an interpreter that has the base alone."""

import json
import os
import subprocess

import pytest

from tests.support.patience import seconds
from tests.support.without import EXTRAS, without

pytestmark = pytest.mark.slow
FLOWS = """
from typing import TypedDict

from headrace import Topology, bolt
from headrace.payloads import Registry
from headrace.sinks import (
    DeltaSink, DiscardSink, IcebergSink, KafkaDeadLetters, PostgresSink, SinkContext, SparkSink,
)
from deploy.relock import relock
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage


class Row(TypedDict):
    n: int


@bolt
def parse(record) -> Row:
    return {"n": 1}


def topology(name, sink, reliability="at-least-once", step=False):
    made = Topology(name, reliability=reliability)
    rows = made.source("t").then(parse)
    (rows.spark(lambda frame: frame, schema=Row) if step else rows).into(sink)
    made.dead_letters.into(KafkaDeadLetters("dead"))
    return made


def opened(sink):
    return lambda: sink.open(SinkContext("p", "s", {}, Storage("w"), SparkDriver("mine")))


by_spark, by_delta = SparkSink("rows", format="parquet", schema=Row), DeltaSink("rows", schema=Row)
spark = topology("spark", by_spark)
step = topology("step", DiscardSink(), step=True)
plain = topology("plain", by_delta, "exactly-once")
CALLS = {
    "SparkSink": opened(by_spark),
    "DeltaSink": opened(by_delta),
    "IcebergSink": opened(IcebergSink("rows", schema=Row)),
    "PostgresSink": opened(PostgresSink("host=db", "rows", schema=Row)),
    "Registry": Registry("http://registry").connect,
    "SparkDriver": SparkDriver("mine").open,
    "relock": relock,
}
"""
SCRIPT = """
import contextlib, io, json, sys

import flows
from headrace.__main__ import main


def said(line):
    if line in flows.CALLS:
        try:
            return flows.CALLS[line]()
        except Exception as error:
            return str(error)
    sys.argv = ["headrace", *line.split()]
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        code = main()
    return f"{code} {told.getvalue()}"


print(json.dumps({line: said(line) for line in sys.argv[1:]}))
"""
_SERVICE = "--config service.toml"
# What is called, what it says, and the extra.
DOORS = [
    (f"run flows:spark {_SERVICE}", "sink 'rows' needs PySpark", "spark"),
    (f"check flows:spark {_SERVICE}", "FAIL spark        sink 'rows' needs PySpark", "spark"),
    (f"run flows:step {_SERVICE}", "Spark step 'spark' needs PySpark", "spark"),
    (f"run flows:plain --engine spark {_SERVICE}", 'engine "spark" needs PySpark', "spark"),
    ("run flows:plain --embedded", "jar 'zookeeper' comes with PySpark", "spark"),
    ("dev up", "jar 'zookeeper' comes with PySpark", "spark"),
    ("relock", "jar 'ivy' comes with PySpark", "spark"),
    ("SparkSink", "sink 'rows' needs PySpark", "spark"),
    ("SparkDriver", "mine needs PySpark", "spark"),
    ("DeltaSink", "a Delta table needs delta-rs", "delta"),
    ("IcebergSink", "catalogue 'default' needs pyiceberg", "iceberg"),
    ("PostgresSink", "table 'rows' needs psycopg", "postgres"),
    ("Registry", "a schema registry needs '", "schema-registry"),
    ("run flows:plain --config traced.toml", "tracing.endpoint: found an endpoint, ", "tracing"),
]
CONFIG = '[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[zookeeper]\nhosts = "127.0.0.1:1"\n'
TRACED = f'{CONFIG}[tracing]\nendpoint = "http://127.0.0.1:1"\n'


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is said at each door, and for a look at a topology."""
    folder = tmp_path_factory.mktemp("without")
    python, environment = without(folder / "packages", *EXTRAS)
    environment["PYTHONPATH"] += f"{os.pathsep}{folder}"
    files = {"flows.py": FLOWS, "service.toml": CONFIG, "traced.toml": TRACED}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [*python, "-c", SCRIPT, "graph flows:spark", *(line for line, *_ in DOORS)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds(120),
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("line", "what", "extra"), DOORS)
def test_every_door_names_what_installs_a_missing_extra(
    said: dict[str, str], line: str, what: str, extra: str
) -> None:
    assert what in said[line]
    assert f', which is not installed: pip install "headrace[{extra}]"' in said[line]
    assert "Traceback" not in said[line]


def test_spark_sink_is_imported_without_pyspark(
    said: dict[str, str],
) -> None:
    assert said["graph flows:spark"].startswith("0 ")
