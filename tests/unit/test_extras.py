"""What is said where an extra is not installed: by an interpreter that has no PySpark."""

import json
import subprocess

import pytest

from tests.support.patience import seconds
from tests.support.without import SPARK, without

PIPELINES = """
from typing import TypedDict

from headrace import Topology, bolt
from headrace.sinks import DeltaSink, DiscardSink, KafkaDeadLetters, SparkSink


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


sink = SparkSink("rows", format="parquet", schema=Row)
spark = topology("spark", sink)
step = topology("step", DiscardSink(), step=True)
plain = topology("plain", DeltaSink("rows", schema=Row), "exactly-once")
"""
# What is called, and what is missed.
DOORS = {
    "run a SparkSink": ("run spark", "sink 'rows' needs PySpark"),
    "check a SparkSink": ("check spark", "FAIL spark        sink 'rows' needs PySpark"),
    "run a Spark step": ("run step", "Spark step 'spark' needs PySpark"),
    "run on the spark engine": ("run plain --engine spark", 'engine "spark" needs PySpark'),
    "run on embedded servers": ("run plain --embedded", "jar 'zookeeper' comes with PySpark"),
    "start servers": ("dev up", "jar 'zookeeper' comes with PySpark"),
    "lock jars": ("relock", "jar 'ivy' comes with PySpark"),
    "open a SparkSink": ("open", "sink 'rows' needs PySpark"),
    "open a Spark of one's own": ("driver", "mine needs PySpark"),
    "look at a topology": ("graph spark", None),
}
SCRIPT = """
import contextlib, io, json, sys
from pathlib import Path

import flows
from headrace.__main__ import main
from headrace.sinks import SinkContext
from service.jars.relock import relock
from service.cli.lines import describe
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage

CALLS = {
    "relock": lambda: relock(Path("jars.lock")),
    "open": lambda: flows.sink.open(
        SinkContext("p", "s", {}, Storage("w"), SparkDriver("mine"))
    ),
    "driver": lambda: SparkDriver("mine").open(),
}


def said(line):
    if line in CALLS:
        try:
            CALLS[line]()
        except Exception as error:
            return describe(error)
    command, *rest = line.split()
    if command != "dev":
        rest[0] = f"flows:{rest[0]}"
    if command in ("run", "check") and "--embedded" not in rest:
        rest += ["--config", "service.toml"]
    sys.argv = ["headrace", command, *rest]
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        code = main()
    return f"{code} {told.getvalue()}"


print(json.dumps({line: said(line) for line in sys.argv[1:]}))
"""
CONFIG = '[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[zookeeper]\nhosts = "127.0.0.1:1"\n'


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each door says."""
    folder = tmp_path_factory.mktemp("without")
    python, environment = without(folder / "packages", *SPARK)
    (folder / "flows.py").write_text(PIPELINES, encoding="utf-8")
    (folder / "service.toml").write_text(CONFIG, encoding="utf-8")
    environment["PYTHONPATH"] += f":{folder}"
    done = subprocess.run(
        [*python, "-c", SCRIPT, *(line for line, _ in DOORS.values())],
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


@pytest.mark.parametrize("door", DOORS)
def test_without_pyspark_every_door_names_what_installs_it(said: dict[str, str], door: str):
    line, wanted = DOORS[door]
    if wanted is None:
        assert said[line].startswith("0 ")
        return
    command = 'which is not installed: pip install "headrace[spark]"'
    assert f"{wanted}, {command}" in said[line]
    assert "Traceback" not in said[line]
