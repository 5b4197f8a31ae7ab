"""Each example as a newcomer runs it: every row is there once, by other means than the sink's own.

The others are run elsewhere: `flights` is the main job, `lookup` and `own_sink` need no server.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

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
from topology.state import LINE

pytestmark = pytest.mark.acceptance

SECONDS = 240.0


class Done(NamedTuple):
    """An example that has ended well: its folder, its account, and what it said before."""

    folder: Path
    account: dict[str, Any]
    said: list[str]


def run(folder: Path, name: str, *options: str, temporary: bool = True) -> Done:
    """Run an example to its end; nothing that it started lives on.

    Its temporary files are kept below the folder, too, but for one whose server runs as another
    user, who may not look in there.
    """
    (folder / "tmp").mkdir()
    place = ["--state-dir", str(folder / "state")]
    command = [sys.executable, "-m", f"examples.{name}", *place, *options]
    environment = {"TMPDIR": str(folder / "tmp")} if temporary else {}
    ran = Run(command, folder / "example", environment)
    try:
        assert ran.wait(SECONDS) == 0, ran.tail()
        assert ran.descendants() == {}
        assert processes.naming(str(folder)) == {}
        *said, last = ran.output.splitlines()
        account = json.loads(last)
        assert account["unresolved"] == 0
        assert all(p["committed"] == p["log_end"] for p in account["partitions"].values())
        return Done(folder / "state" / name, account, said)
    finally:
        ran.end()


def decoded(messages: Iterable[tuple[str, bytes]]) -> Iterator[dict[str, Any]]:
    for _, value in messages:
        try:
            yield json.loads(value)
        except ValueError:
            continue


def test_card_alerts_go_into_their_topic_once(tmp_path):
    """A reader of committed messages gets each, under its card, in the order of the payments."""
    done = run(tmp_path, "topic")
    published = list(payments())
    wanted: dict[str, list[tuple[int, str]]] = {}
    for payment in decoded(published):
        is_large = payment["cents"] > (100_000 if payment["country"] == "NL" else 20_000)
        if is_large:
            reason = f"{payment['cents'] / 100:.2f} in {payment['country']}"
            wanted.setdefault(payment["card"], []).append((payment["id"], reason))
    kafka = EmbeddedKafka(done.folder / "kafka")
    kafka.open()
    try:
        found: dict[str, list[tuple[int, str]]] = {}
        for value, key, _ in committed_messages(kafka.address, "alerts"):
            alert = json.loads(value or b"")
            assert (key or b"").decode() == alert["card"]
            found.setdefault(alert["card"], []).append((alert["payment"], alert["reason"]))
        letters = evidence.reasons(kafka.address, "payments.dead")
    finally:
        kafka.close()
    assert found == wanted
    torn = len(published) - len(list(decoded(published)))
    assert len(letters) == torn == 10
    rows = sum(map(len, wanted.values()))
    account = done.account
    assert (account["read"], account["rows"]) == (len(published), rows)
    assert account["dead_lettered"] == torn
    assert account["filtered"] == len(published) - torn - rows
    assert done.said[-1] == f"{rows} alerts of {len(published)} payments"


def test_page_views_are_in_the_iceberg_table_once(tmp_path):
    """Its metadata and manifests say which files are its own; they are plain JSON and Avro."""
    done = run(tmp_path, "iceberg")
    published = list(decoded(requests()))
    wanted: Counter[tuple[object, ...]] = Counter()
    broken = filtered = 0
    for each in published:
        if "Bot" in each["agent"] or each["status"] == 404:
            filtered += 1
        elif "[" in each["url"]:
            broken += 1
        else:
            path, _, query = each["url"].removeprefix("https://example.org").partition("?")
            campaign = query.partition("campaign=")[2] or None
            at = datetime.fromisoformat(each["at"])
            wanted[at, each["visitor"], path, campaign] += 1
    found: Counter[tuple[object, ...]] = Counter()
    warehouse = done.folder / "warehouse"
    assert done.account["table"] == str(warehouse / "default" / "page_views")
    location = table_files.metadata_of(warehouse / "iceberg.db", "page_views")
    for table, partition in table_files.pieces(location):
        for row in table.to_pylist():
            assert row["at"].date() == partition["at_day"]
            found[row["at"], row["visitor"], row["page"], row["campaign"]] += 1
    assert found == wanted
    account = done.account
    assert (account["read"], account["rows"]) == (len(published), wanted.total())
    assert (account["dead_lettered"], account["filtered"]) == (broken, filtered)
    assert broken > 0


@pytest.mark.nightly
def test_every_parcel_on_its_way_has_the_row_of_its_last_scan(tmp_path):
    """The database says so itself; that of a parcel that was handed over is gone."""
    server = EmbeddedPostgres(tmp_path / "state" / "postgres" / "postgres")
    done = run(tmp_path, "postgres", temporary=False)
    published = list(decoded(scans()))
    states = {"accepted": "on the way", "sorted": "on the way", "loaded": "out for delivery",
              "handed over": "delivered", "refused": "goes back"}  # fmt: skip
    known = [each for each in published if each["event"] in states]
    wanted = {
        each["parcel"]: (states[each["event"]], each["place"], datetime.fromisoformat(each["at"]))
        for each in known
    }
    wanted = {parcel: row for parcel, row in wanted.items() if row[0] != "delivered"}
    try:
        server.open()
        rows = rows_of(server, "SELECT * FROM parcels")
    finally:
        server.close()
        server.remove_data()
    found = {
        row["parcel"]: (row["state"], row["place"], datetime.fromisoformat(row["seen_at"]))
        for row in rows
    }
    assert len(rows) == len(found)
    assert found == wanted
    account = done.account
    assert (account["read"], account["rows"]) == (len(published), len(known))
    assert account["dead_lettered"] == len(published) - len(known) > 0


@pytest.mark.nightly
def test_word_count_on_spark_counts_every_word_once(tmp_path):
    """One example runs on the other engine: the counts are those of a Counter there, too."""
    done = run(tmp_path, "word_count", "--engine", "spark")
    published = [value for _, value in lines()]
    texts = [value.decode() for value in published if not value.startswith(b"\xff")]
    words = [re.findall(r"[a-z']+", text.lower()) for text in texts]
    table = evidence.read_table(done.folder / "warehouse" / "word_counts")
    found: Counter[str] = Counter()
    longest: Counter[str] = Counter()
    for row in table.to_pylist():
        found[row["word"]] += row["n"]
        longest[row["word"]] = max(longest[row["word"]], row["longest_line"])
    assert found == Counter(word for line in words for word in line)
    assert longest == {word: max(len(line) for line in words if word in line) for word in found}
    assert len(set(zip(table["word"], table[LINE], strict=True))) == table.num_rows
    account = done.account
    assert (account["read"], account["rows"]) == (len(published), found.total())
    assert account["dead_lettered"] == len(published) - len(texts) == 5


@pytest.mark.nightly
def test_every_order_of_a_known_customer_is_billed_once(tmp_path):
    """Spark joins; what it must come to is worked out here."""
    done = run(tmp_path, "spark_step")
    published = list(orders())
    whole = list(decoded(published))
    countries = {row["customer"]: row["country"] for row in customers().to_pylist()}
    rates = {"NL": 21, "DE": 19, "LU": 17}
    wanted: Counter[tuple[object, ...]] = Counter()
    for order in whole:
        if order["customer"] in countries:
            country = countries[order["customer"]]
            tax = Decimal(order["cents"] * rates.get(country, 0)) / 10_000
            wanted[order["id"], order["customer"], country, order["cents"], tax] += 1
    rows = evidence.read_table(done.folder / "warehouse" / "bills").to_pylist()
    names = ("id", "customer", "country", "cents", "tax")
    assert Counter(tuple(row[name] for name in names) for row in rows) == wanted
    account = done.account
    assert (account["read"], account["rows"]) == (len(published), wanted.total())
    assert account["written"] == len(whole)
    assert account["dead_lettered"] == len(published) - len(whole)
    assert done.said[-1] == f"{wanted.total()} bills of {len(published)} orders"


@pytest.mark.nightly
def test_upserts_example_keeps_the_last_row_of_each_customer(tmp_path):
    """By the table's log and files; whoever had a tombstone last has no row."""
    done = run(tmp_path, "upserts")
    published = list(changes())
    torn = [value for _, value in published if value is not None and not value.endswith(b"}")]
    wanted: dict[int, tuple[str, str]] = {}
    for customer, value in published:
        if value is None:
            wanted.pop(int(customer), None)
        elif value not in torn:
            told = json.loads(value)
            wanted[int(customer)] = told["name"], told["town"]
    rows = evidence.read_table(done.folder / "warehouse" / "customers").to_pylist()
    assert [*rows[0]] == ["id", "name", "town"]
    assert len(rows) == len(wanted) < len({customer for customer, _ in published})
    assert {row["id"]: (row["name"], row["town"]) for row in rows} == wanted
    account = done.account
    assert (account["read"], account["rows"]) == (len(published), len(published) - len(torn))
    assert account["dead_lettered"] == len(torn) > 0
