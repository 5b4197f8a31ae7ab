import json
import os
import subprocess
import sys

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks import orders_topologies, tables_growth
from benchmarks.bench import medians
from benchmarks.child import Job
from benchmarks.io_bound import FAST_SECONDS, SLOW_ONE_IN, ideal_seconds, is_slow
from benchmarks.measured import Memory, Moment, Process, figures, parse, tree, tree_seconds
from benchmarks.order_table import ORDER, PRICED, Contents, contents, delays, first_visible
from benchmarks.orders import FIRST_ORDER, LEAST_TOTAL, ORDER_BYTES, USERS, Orders, users
from benchmarks.orders_topologies import FLOWS, Price, PriceColumns, keep_large
from benchmarks.place import delta_files
from benchmarks.publishing import Publisher, due
from benchmarks.result import compared, compared_facts, facts
from benchmarks.scale import memory, owner_thread
from headrace import SKIP, Reject
from service.loading import load_topology
from sinks.storage import Storage
from tests.support.patience import Limit

SECOND = 1_000
BUSY = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def runs(*rates):
    made = {"rows": 1, "order_ids": 1, "cents": 1, "batches": 1}
    return [{**made, "per_second": rate, "cpu_us": 100 / rate} for rate in rates]


def test_a_slow_hour_of_the_machine_is_in_both_of_a_pair():
    found = compared({"ours": runs(60, 30, 50), "theirs": runs(10, 5, 10)}, {"ours": "theirs"})
    assert (found["ours"]["ratio"], found["ours"]["spread"]) == (6.0, [5.0, 6.0])
    assert found["ours"]["cpu_ratio"] == pytest.approx(1 / 6)
    assert compared_facts(found)["per_second"] == {"ours": 50, "theirs": 10}


@pytest.fixture
def table(tmp_path):
    """Five orders, made at second 10 and each a second later; commits at seconds 12 and 20."""
    (tmp_path / "_delta_log").mkdir()
    commit(tmp_path, 0, [], at=1)
    commit(tmp_path, 1, [0, 1], at=12)
    commit(tmp_path, 2, [2, 3, 4], at=20)
    return tmp_path


def commit(table, version, numbers, *, at):
    actions = [{"commitInfo": {}}]
    if numbers:
        columns = {
            "order_id": [FIRST_ORDER + number for number in numbers],
            "ts": [(10 + number) * SECOND for number in numbers],
        }
        pq.write_table(pa.table(columns), table / f"part {version}.parquet")
        actions.append({"add": {"path": f"part%20{version}.parquet"}})
    entry = table / "_delta_log" / f"{version:020d}.json"
    entry.write_text("\n".join(map(json.dumps, actions)))
    os.utime(entry, (at, at))


def test_all_that_a_commit_has_made_visible_waited_for_it(table):
    found = delays(table, since=0)  # 2, 1, 8, 7 and 6 seconds
    assert found["p50_ms"] == 6 * SECOND
    assert found["most_ms"] == 8 * SECOND
    assert found["p99_ms"] == pytest.approx(7.96 * SECOND)
    assert found["commits"] == 2
    assert delays(table, since=3)["p50_ms"] == 6.5 * SECOND
    assert first_visible(table) == 12 * SECOND
    with pytest.raises(SystemExit, match="no order from number 5 on"):
        delays(table, since=5)


def rows(ids, totals):
    return pa.table({"order_id": ids, "total": totals, "sku": ["x"] * len(ids)})


def test_delta_files_are_those_of_the_log(tmp_path):
    storage, uri = Storage(str(tmp_path)), str(tmp_path / "orders")
    write_deltalake(uri, rows([9], [9.0]))
    write_deltalake(uri, rows([1, 2], [0.1, 0.2]), mode="overwrite")
    write_deltalake(uri, rows([5], [50.25]), mode="append")
    pq.write_table(rows([9], [9.0]), f"{uri}/orphan.parquet")
    assert len(DeltaTable(uri).file_uris()) == 2
    found = contents(storage, delta_files(storage, uri))
    assert found == Contents(rows=3, order_ids=8, cents=5_055)


def test_records_read_before_opening_are_not_measured():
    start = Moment(at=100.0, cpu=3.0, read=1_000)
    end = Moment(at=104.0, cpu=9.0, read=5_000)
    found = figures(start, end, Memory(5_000))
    assert found["records"] == 5_000
    assert found["per_second"] == pytest.approx(1_000)
    assert found["cpu_us"] == pytest.approx(1_500)


def test_opening_time_is_reported_where_it_exists():
    runs = {
        "raw": [{"records": 10}],
        "noop": [{"records": 10, "open_seconds": seconds} for seconds in (0.7, 0.41239, 0.2)],
    }
    assert facts(medians(runs), open_seconds=3) == {"open_seconds": {"noop": 0.412}}


def test_every_order_has_its_bytes_and_a_user_that_is_known():
    known, orders = users(), Orders()
    values = [orders.value(number) for number in range(0, 3_000_000, 997)]
    assert {len(value) for value in values} == {ORDER_BYTES}
    read = [orjson.loads(value) for value in values]
    assert len(known) == USERS
    assert all(order["user_id"] in known for order in read)
    assert len({order["order_id"] for order in read}) == len(read)
    small = sum(order["qty"] * order["price"] < LEAST_TOTAL for order in read)
    assert small / len(read) == pytest.approx(1 / 12, rel=0.1)

    value = orders.value(7, made_at=1_763_999_999_999)
    assert len(value) == ORDER_BYTES
    assert orjson.loads(value) == orjson.loads(orders.value(7)) | {"ts": 1_763_999_999_999}


def process(pid, parent, session):
    return Process(pid, parent, session, 1.0)


def test_a_line_is_read_whatever_the_process_is_called():
    line = "7 (a) b (c) S 3 7 5 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 9 0 1 2 3"
    assert parse(line) == Process(7, 3, 5, pytest.approx(1.24))


def test_descendants_and_their_sessions_belong_to_the_tree():
    family = [process(10, 1, 1), process(11, 10, 1), process(12, 11, 1)]
    jvm, orphan = process(20, 10, 20), process(30, 1, 20)
    found = tree([process(1, 0, 1), *family, jvm, orphan, process(40, 1, 1)], 10)
    assert [each.pid for each in found] == [10, 11, 12, 20, 30]


def test_cpu_of_children_counts_during_and_after_their_life():
    before = tree_seconds()
    with subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) as child:
        deadline = Limit(30)
        while child.poll() is None and tree_seconds() - before < 0.1:
            assert not deadline.passed
        child.wait()
    assert tree_seconds() - before >= 0.3


def test_records_are_due_at_the_rate():
    assert due(0.0, 20_000, 100_000) == 1
    assert due(0.5, 20_000, 100_000) == 10_001
    assert due(60.0, 20_000, 100_000) == 100_000


def test_one_that_fails_is_noticed():
    with Publisher(job(10), 0) as publisher:  # at no records a second it would never end
        publisher.start()
        publisher.start()
        publisher._process.kill()
        publisher._process.wait()
        with pytest.raises(SystemExit, match="has failed"):
            publisher.check()


def test_ideal_lets_other_workers_pass_a_slow_call():
    assert ideal_seconds(iter([FAST_SECONDS] * 1_001), 100) == pytest.approx(0.1)
    calls = [10.0, *[1.0] * 8, 1.0]
    assert ideal_seconds(iter(calls), 2) == pytest.approx(8.0)
    assert ideal_seconds(iter(calls), 1) == pytest.approx(18.0)


def test_one_record_in_a_thousand_is_slow_on_each_partition():
    slow = [number for number in range(40 * SLOW_ONE_IN) if is_slow(number)]
    assert [number // SLOW_ONE_IN for number in slow] == list(range(40))
    counts = [sum(number % 4 == partition for number in slow) for partition in range(4)]
    assert counts == [10, 10, 10, 10]


def job(records, **options):
    return Job("m", "v", "nowhere", "nowhere", "t", records, "p", options=options)


def test_commits_go_into_a_table_of_the_requested_size(monkeypatch):
    counted = []
    committed = tables_growth._committed

    def counting(sink, staged):
        counted.append(len(sink.data_files()))
        return committed(sink, staged)

    monkeypatch.setattr(tables_growth, "_committed", counting)
    found = tables_growth.VARIANTS["commits"](job(3, files=100))
    assert found["commit_ms"] > 0
    assert counted == [101, 102, 103]


def orders(count):
    value = Orders().value
    return [orjson.loads(value(number)) for number in range(count)]


@pytest.mark.parametrize("name", [*FLOWS, "growing"])
def test_executors_and_the_command_line_find_topologies_by_name(name):
    load_topology(f"{orders_topologies.MODULE}:{name}").validate()


def test_columns_and_functions_price_alike():
    given = orders(500)
    price = Price()
    price.open()
    by_function = [price.process(order) for order in given]
    kept = [row for row in by_function if keep_large.process(row) is not SKIP]
    batch = pa.RecordBatch.from_pylist(given, schema=ORDER)
    lineage = batch.append_column("lineage", pa.array(range(500), pa.int64()))
    by_columns = PriceColumns().price(lineage)
    assert by_columns.schema.names == [*PRICED.names, "lineage"]
    assert by_columns.drop_columns(["lineage"]).to_pylist() == kept
    assert 0 < len(kept) < 500
    assert all(row["total"] >= LEAST_TOTAL for row in kept)


def test_columns_reject_an_unknown_user():
    (order,) = orders(1)
    batch = pa.RecordBatch.from_pylist([order | {"user_id": 1, "price": 99.0}], schema=ORDER)
    with pytest.raises(Reject, match="no such user: 1"):
        PriceColumns().price(batch)


def test_anothers_partition_costs_less_memory_than_ours():
    found = memory(20)
    assert 0 < found["known_bytes"] < found["idle_bytes"]
    assert owner_thread(20, 5)["turn_seconds"] >= 0
