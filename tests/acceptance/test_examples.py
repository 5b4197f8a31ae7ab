"""Each example as a newcomer runs it: every row is there once, by other means than the sink's own.

The others are run elsewhere: `flights` is the main job, `lookup` and `own_sink` need no server.
`tests/unit/examples` tests what their bolts do.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.iceberg.__main__ import requests
from examples.postgres.__main__ import scans
from examples.spark_step.__main__ import customers, orders
from examples.support.postgres_server import EmbeddedPostgres
from examples.topic.__main__ import payments
from examples.upserts.__main__ import changes
from examples.word_count.__main__ import lines
from service.devservers.servers import EmbeddedKafka
from tests.acceptance import evidence, processes, table_files
from tests.acceptance.harness import Run
from tests.support.committed_messages import committed_messages
from tests.support.postgres_table import rows_of
from tests.support.servers import opened
from topology.state import LINE

pytestmark = pytest.mark.acceptance
nightly = pytest.mark.nightly

SECONDS = 240.0
Account = dict[str, Any]


def run(folder: Path, name: str, *options: str, temporary: bool = True) -> tuple[Path, Account]:
    """Run an example to its end; nothing that it started lives on. Its folder and its account.

    Its temporary files are kept below the folder, too, but for one whose server runs as another
    user, who may not look in there.
    """
    (folder / "tmp").mkdir()
    command = [sys.executable, "-m", f"examples.{name}", "--state-dir", str(folder / "state")]
    environment = {"TMPDIR": str(folder / "tmp")} if temporary else {}
    ran = Run([*command, *options], folder / "example", environment)
    try:
        assert ran.wait(SECONDS) == 0, ran.tail()
        assert ran.descendants() == {}
        assert processes.naming(str(folder)) == {}
        account = ran.account()
        assert account["unresolved"] == 0
        assert all(p["committed"] == p["log_end"] for p in account["partitions"].values())
        return folder / "state" / name, account
    finally:
        ran.end()


def whole(messages: Any) -> tuple[list[dict[str, Any]], int]:
    """Return the messages that are JSON, and the number of the others."""
    found, torn = [], 0
    for _, value in messages:
        try:
            found.append(json.loads(value))
        except ValueError:
            torn += 1
    return found, torn


def test_card_alerts_go_into_their_topic_once(tmp_path):
    """A reader of committed messages gets each, under its card, in the order of the payments."""
    folder, account = run(tmp_path, "topic")
    published, torn = whole(payments())
    wanted: dict[str, list[int]] = {}
    for payment in published:
        if payment["cents"] > (100_000 if payment["country"] == "NL" else 20_000):
            wanted.setdefault(payment["card"], []).append(payment["id"])
    with opened(EmbeddedKafka(folder / "kafka")) as kafka:
        found: dict[str, list[int]] = {}
        for each in committed_messages(kafka.address, "alerts"):
            payment = json.loads(each.value() or b"")["payment"]
            found.setdefault((each.key() or b"").decode(), []).append(payment)
        letters = evidence.dead_letters(kafka.address, "payments.dead")
    assert found == wanted
    rows = sum(map(len, wanted.values()))
    assert len(letters) == account["dead_lettered"] == torn == 10
    assert (account["read"], account["rows"]) == (len(published) + torn, rows)
    assert account["filtered"] == len(published) - rows


@nightly
def test_page_views_are_in_the_iceberg_table_once(tmp_path):
    """Its metadata and manifests say which files are its own; they are plain JSON and Avro."""
    folder, account = run(tmp_path, "iceberg")
    published, _ = whole(requests())
    people = [each for each in published if "Bot" not in each["agent"] and each["status"] != 404]
    good = [each for each in people if "[" not in each["url"]]
    location = table_files.metadata_of(folder / "warehouse" / "iceberg.db", "page_views")
    found: Counter[tuple[str, str]] = Counter()
    for table, partition in table_files.pieces(location):
        for row in table.to_pylist():
            assert row["at"].date() == partition["at_day"]
            found[row["at"].isoformat(), row["visitor"]] += 1
    assert found == Counter((each["at"], each["visitor"]) for each in good)
    assert (account["read"], account["rows"]) == (len(published), len(good))
    assert account["dead_lettered"] == len(people) - len(good) > 0
    assert account["filtered"] == len(published) - len(people)


@nightly
def test_every_parcel_on_its_way_has_the_row_of_its_last_scan(tmp_path):
    """The database says so itself; that of a parcel that was handed over is gone."""
    server = EmbeddedPostgres(tmp_path / "state" / "postgres" / "postgres")
    _, account = run(tmp_path, "postgres", temporary=False)
    published, _ = whole(scans())
    events = {"accepted", "sorted", "loaded", "handed over", "refused"}
    known = [each for each in published if each["event"] in events]
    last = {each["parcel"]: each for each in known}
    with opened(server):
        rows = rows_of(server, "SELECT parcel, place FROM parcels")
    server.remove_data()
    assert Counter((row["parcel"], row["place"]) for row in rows) == Counter(
        (parcel, each["place"]) for parcel, each in last.items() if each["event"] != "handed over"
    )
    assert (account["read"], account["rows"]) == (len(published), len(known))
    assert account["dead_lettered"] == len(published) - len(known) > 0


@nightly
def test_word_count_on_spark_counts_every_word_once(tmp_path):
    """One example runs on the other engine: the counts are those of a Counter there, too."""
    folder, account = run(tmp_path, "word_count", "--engine", "spark")
    published = [value for _, value in lines()]
    texts = [value.decode().lower() for value in published if not value.startswith(b"\xff")]
    table = evidence.read_table(folder / "warehouse" / "word_counts")
    found: Counter[str] = Counter()
    for row in table.to_pylist():
        found[row["word"]] += row["n"]
    assert found == Counter(word for text in texts for word in re.findall(r"[a-z']+", text))
    assert len(set(zip(table["word"], table[LINE], strict=True))) == table.num_rows
    assert (account["read"], account["rows"]) == (len(published), found.total())
    assert account["dead_lettered"] == len(published) - len(texts) == 5


@nightly
def test_every_order_of_a_known_customer_is_billed_once(tmp_path):
    """Spark joins; what it must come to is worked out here."""
    folder, account = run(tmp_path, "spark_step")
    published, torn = whole(orders())
    countries = {row["customer"]: row["country"] for row in customers().to_pylist()}
    wanted = Counter(
        (order["id"], countries[order["customer"]], order["cents"])
        for order in published
        if order["customer"] in countries
    )
    rows = evidence.read_table(folder / "warehouse" / "bills").to_pylist()
    assert Counter((row["id"], row["country"], row["cents"]) for row in rows) == wanted
    assert (account["read"], account["rows"]) == (len(published) + torn, wanted.total())
    assert (account["written"], account["dead_lettered"]) == (len(published), torn)


@nightly
def test_upserts_example_keeps_the_last_row_of_each_customer(tmp_path):
    """By the table's log and files; whoever had a tombstone last has no row."""
    folder, account = run(tmp_path, "upserts")
    published = list(changes())
    good = [(key, value) for key, value in published if value is None or value.endswith(b"}")]
    last = {int(customer): value for customer, value in good}
    wanted = {customer: json.loads(value)["name"] for customer, value in last.items() if value}
    rows = evidence.read_table(folder / "warehouse" / "customers").to_pylist()
    assert [*rows[0]] == ["id", "name", "town"]
    assert len(rows) == len(wanted) < len(last)
    assert {row["id"]: row["name"] for row in rows} == wanted
    assert (account["read"], account["rows"]) == (len(published), len(good))
    assert account["dead_lettered"] == len(published) - len(good) > 0
