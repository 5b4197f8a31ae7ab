import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pyarrow as pa
import pytest

from headrace.sinks import Batch, DeltaSink, DiscardSink, IcebergSink, PostgresSink, SinkContext
from headrace.state import PostgresState, State, count
from service import wiring
from service.config.settings import load
from sinks.storage import Storage
from tests.support import commands
from tests.support.bolts import made
from tests.support.commands import TARGET, FileSink, topology_of
from tests.support.front import Front
from tests.unit.service.conftest import cells_of, words_of
from topology.errors import SinkBusy, SinkFailed

MIB = 1024 * 1024


@pytest.fixture
def run_tables(headrace, service_toml, monkeypatch):
    def run_tables(sinks, *words):
        monkeypatch.setattr(commands, "topology", topology_of(sinks))
        config = ["--config", str(service_toml)]
        return headrace("tables", *words[:1], TARGET, *words[1:], *config)

    return run_tables


def test_compact_joins_small_files_and_prints_counts(run_tables):
    sink = FileSink("orders", MIB, 2 * MIB, 3 * MIB, 500 * MIB)
    code, out, _ = run_tables([sink, DiscardSink("rest")], "compact")
    assert code == 0
    orders, rest = cells_of(out)
    assert orders[:5] == ["orders", "compacted", "3", "1", "6.0"]
    assert rest[:5] == ["rest", "has no files", "0", "0", "0.0"]
    assert sink.calls == ["open", f"compact {128 * MIB}", "close"]
    context = sink.context  # as a run opens it
    assert (context.pipeline, context.sink) == ("tables", "orders")
    assert context.storage.warehouse == "/tables"
    assert not context.spark.running  # until a table asks for it
    assert context.exactly_once is False


def facts(ran):
    code, out, _ = ran
    return code, {name: each["outcome"] for name, each in json.loads(out)["sinks"].items()}


def test_the_facts_are_one_json_object(run_tables):
    sinks = [FileSink("orders", 5, 6), FileSink("refunds", 7), DiscardSink("rest")]
    code, out, _ = run_tables(sinks, "compact", "--target-mib", "1", "--json")
    (line,) = out.splitlines()
    found = json.loads(line)["sinks"]
    assert found["orders"].pop("seconds") >= 0
    assert (code, found["orders"]) == (0, {
        "kind": "FileSink", "outcome": "compacted", "note": "",
        "files_replaced": 2, "files_written": 1, "bytes_replaced": 11,
    })  # fmt: skip
    outcomes = [found[name]["outcome"] for name in ("refunds", "rest")]
    assert outcomes == ["nothing_to_do", "has_no_files"]
    assert sinks[0].calls[1] == f"compact {MIB}"


@pytest.mark.parametrize(
    ("words", "call", "outcome", "figure"),
    [
        (["vacuum"], "vacuum 168", "vacuumed", "files_removed"),
        (["vacuum", "--older-than-hours", "30"], "vacuum 30", "vacuumed", "files_removed"),
        (["expire"], "expire", "expired", "versions_removed"),
        (["compact", "--dry-run"], f"compact {128 * MIB} dry", "dry_run", "files_replaced"),
        (["vacuum", "--dry-run"], "vacuum 168 dry", "dry_run", "files_removed"),
        (["expire", "--dry-run"], "expire dry", "dry_run", "versions_removed"),
    ],
)
def test_table_behind_another_sink_is_maintained(run_tables, words, call, outcome, figure):
    sink = FileSink("orders", 5, 6)
    code, out, _ = run_tables([Front(sink)], *words, "--json")
    found = json.loads(out)["sinks"]["orders"]
    assert (code, found["outcome"], found[figure]) == (0, outcome, 2)
    assert sink.calls == ["open", call, "close"]
    assert outcome.replace("_", " ") in run_tables([sink], *words)[1]


def test_only_the_sinks_that_are_named_are_opened(run_tables):
    sinks = [FileSink("orders"), FileSink("refunds"), FileSink("returns")]
    ran = run_tables(sinks, "compact", "returns", "orders", "--json")
    assert list(facts(ran)[1]) == ["orders", "returns"]
    assert sinks[1].calls == []


@pytest.mark.parametrize("error", [SinkBusy(0.5, "another commits"), SinkFailed("no"), OSError(5)])
def test_a_table_that_fails_keeps_no_other_from_its_turn(run_tables, error):
    sinks = [FileSink("orders", 1, 2, error=error), FileSink("refunds", 1, 2)]
    code, out, err = ran = run_tables(sinks, "compact", "--json")
    assert facts(ran) == (1, {"orders": "failed", "refunds": "compacted"})
    assert str(error) in json.loads(out)["sinks"]["orders"]["note"]
    assert err.splitlines()[-1].startswith("headrace: not compacted: orders;")
    assert [sink.calls[-1] for sink in sinks] == ["close", "close"]
    code, out, _ = run_tables(sinks, "compact")
    assert (code, "orders: " in out, str(error) in out) == (1, True, True)


@pytest.mark.parametrize(
    ("sinks", "words", "said"),
    [
        (["orders", "rest"], ["compact", "order"], "no sink 'order', expected orders"),
        (["orders", "rest"], ["compact", "rest"], "sink 'rest' (DiscardSink) has no log of"),
        (["orders", "rest"], ["files", "rest"], "expected orders"),
        (["orders", "rest"], ["files", "order"], "no sink 'order'"),
        (["rest"], ["compact"], "no sink of topology 'tables' has a log of its files: 'rest' is"),
        (["orders"], ["files"], "Missing argument"),
        (["orders"], ["compact", "--target-mib", "0"], "--target-mib"),
        (["orders"], ["vacuum", "--older-than-hours", "23"], "--older-than-hours"),
    ],
)
def test_wrong_sink_is_wrong_usage_and_names_the_right_ones(run_tables, sinks, words, said):
    made = [DiscardSink(name) if name == "rest" else FileSink(name) for name in sinks]
    code, out, err = run_tables(made, *words)
    assert (code, out) == (2, "")
    assert said in words_of(err)


def test_the_files_of_a_table_are_a_line_each(run_tables):
    sink = FileSink("orders", 1, 2)
    code, out, _ = run_tables([sink], "files", "orders")
    assert (code, out.splitlines()) == (0, ["/tables/orders/0-1", "/tables/orders/1-2"])
    assert sink.calls == ["open", "close"]
    _, out, _ = run_tables([sink], "files", "orders", "--json")
    assert json.loads(out) == {"sink": "orders", "files": sink.data_files()}


def test_spark_is_ended_also_when_nothing_else_works(run_tables, monkeypatch):
    spark, context = Mock(), Mock(side_effect=SinkFailed("no warehouse"))
    parts_ = SimpleNamespace(name="shop", config=None, context=context)
    monkeypatch.setattr(wiring, "wire", lambda *_: parts_)
    monkeypatch.setattr(wiring, "spark_driver", lambda *_: spark)
    assert run_tables([FileSink("orders")], "compact")[0] == 1
    assert run_tables([FileSink("orders")], "files", "orders")[0] == 1
    assert spark.close.call_count == 2


def test_spark_gets_the_jars_of_every_sink_each_once(monkeypatch):
    first, second = (
        made(DiscardSink, needs_spark=True, needs_jars=jars)(name)
        for name, jars in (("a", ("one", "both")), ("b", ("both", "two")))
    )
    monkeypatch.setattr(wiring, "resolve", lambda name: [Path("shared.jar"), Path(f"{name}.jar")])
    config = load(None, {"kafka": {"bootstrap.servers": "-"}, "zookeeper": {"hosts": "-"}})
    driver = wiring.spark_of(topology_of([first, second]), config)
    assert driver._jars() == [Path(f"{name}.jar") for name in ("shared", "both", "one", "two")]
    assert not driver.running
    in_postgres = PostgresSink("host=db", "orders", schema=pa.schema({"id": pa.int64()}))
    state = State("words", key={"word": str}, into=PostgresState("host=db", "words"))
    without = topology_of([DiscardSink(), in_postgres, state.sink({"n": count()})])
    without.uses(state)
    assert wiring.spark_of(without, config) is None


def test_tables_of_both_formats_are_maintained(run_tables, tmp_path, monkeypatch):
    schema = pa.schema({"id": pa.int64()})
    monkeypatch.setenv("HEADRACE_STORAGE__WAREHOUSE", str(tmp_path / "tables"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)  # no PySpark
    sinks = [DeltaSink("delta", schema=schema), IcebergSink("iceberg", schema=schema)]
    context = SinkContext("p", "s", {}, Storage(str(tmp_path / "tables")), None)
    for sink in sinks:
        sink.open(context)
        for number in (1, 2):
            sink.write(Batch(number, [[{"id": number}]], 1))
        sink.close()

    def outcomes(*words):
        code, found = facts(run_tables(sinks, *words, "--json"))
        return code, list(found.values())

    assert outcomes("compact", "--dry-run") == (0, ["dry_run", "dry_run"])
    assert outcomes("compact", "delta") == (0, ["compacted"])
    assert outcomes("expire") == (0, ["nothing_to_do", "nothing_to_do"])
    assert outcomes("vacuum") == (1, ["nothing_to_do", "failed"])
    _, out, _ = run_tables(sinks, "vacuum")
    assert "iceberg: remove_orphan_files needs PySpark, which is not installed: pip" in out
    assert outcomes("compact", "--dry-run") == (0, ["nothing_to_do", "dry_run"])
