"""The look-up example: what it makes of each answer, and how often it asks."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from examples.lookup import bolts
from examples.lookup.bolts import AddPrice, parse, pause_in
from examples.lookup.pipeline import priced
from examples.lookup.prices import PriceService
from examples.lookup.rows import Order
from headrace import Record, Reject, Retry, Topology
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test
from tests.support.patience import seconds

ROOT = Path(__file__).resolve().parents[3]
NUT = {"name": "Nut M8", "price": 0.1}
ORDER = Order(7, "nut", 3)
Handler = Callable[[httpx2.Request], httpx2.Response]


def order(number: int, sku: str = "nut") -> bytes:
    return orjson.dumps({"order_id": number, "sku": sku, "quantity": 2})


def priced_by(handler: Any, workers: int) -> Topology:
    topology = Topology("priced")
    add_price = AddPrice("http://prices", transport=httpx2.MockTransport(handler))
    orders = topology.source("orders").then(parse)
    orders.then(add_price, workers=workers).into(MemorySink("priced"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


def answered(handler: Handler) -> Any:
    bolt = AddPrice("http://prices", transport=httpx2.MockTransport(handler))

    async def answer() -> Any:
        await bolt.open()
        try:
            return await bolt.process(ORDER)
        finally:
            await bolt.close()

    return asyncio.run(answer())


def test_an_order_gets_its_item_s_name_and_total() -> None:
    def handler(request: httpx2.Request) -> httpx2.Response:
        assert str(request.url) == "http://prices/items/nut"
        return httpx2.Response(200, json=NUT)

    assert parse(Record(b'{"order_id": 7, "sku": "nut", "quantity": 3}', None)) == ORDER
    assert answered(handler) == {
        "order_id": 7, "sku": "nut", "name": "Nut M8", "quantity": 3, "total": 0.3,
    }  # fmt: skip


@pytest.mark.parametrize("value", [None, b"", b"{", b'{"order_id": "x", "sku": "nut"}'])
def test_what_is_no_order_is_rejected(value: bytes | None) -> None:
    with pytest.raises(Reject, match="not an order"):
        parse(Record(value, None))


@pytest.mark.parametrize(
    ("response", "error", "reason", "after_seconds"),
    [
        (httpx2.Response(404), Reject, "knows no item 'nut'", None),
        (httpx2.Response(400), Reject, "answered 400", None),
        (httpx2.Response(500), Retry, "answered 500", None),
        (httpx2.Response(503), Retry, "answered 503", None),
        (httpx2.Response(503, headers={"Retry-After": "7"}), Retry, "answered 503", 7.0),
        (httpx2.Response(429, headers={"Retry-After": "9999"}), Retry, "answered 429", 300.0),
        (httpx2.Response(200, content=b"<html>"), Retry, "gave no item", None),
    ],
)
def test_answer_without_a_price_rejects_or_retries(
    response: httpx2.Response,
    error: type[Exception],
    reason: str,
    after_seconds: float | None,
) -> None:
    with pytest.raises(error, match=reason) as caught:
        answered(lambda _request: response)
    assert getattr(caught.value, "after_seconds", None) == after_seconds


def test_a_service_that_cannot_be_reached_is_asked_again() -> None:
    def handler(_request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with pytest.raises(Retry, match="ConnectError refused"):
        answered(handler)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("120", 120.0),
        ("86400", 300.0),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
    ],
)
def test_the_pause_that_a_service_asks_for_is_seconds_or_a_date(
    header: str | None, seconds: float | None
) -> None:
    assert pause_in(header, datetime(2026, 11, 21, 12, tzinfo=UTC)) == seconds


def test_no_more_calls_run_at_once_than_there_are_workers() -> None:
    running: set[str] = set()
    peak = 0
    all_run = asyncio.Event()

    async def handler(request: httpx2.Request) -> httpx2.Response:
        nonlocal peak
        running.add(request.url.path)
        peak = max(peak, len(running))
        if len(running) == 3:
            all_run.set()
        await all_run.wait()
        running.discard(request.url.path)
        return httpx2.Response(200, json=NUT)

    with topology_test(priced_by(handler, workers=3)) as kit:
        kit.send(*(order(number, f"item-{number}") for number in range(30)))
        assert len(kit.rows) == 30
    assert peak == 3


def test_each_item_is_asked_for_once() -> None:
    with PriceService() as service, topology_test(priced(service.url)) as kit:
        kit.send(*(order(number, sku) for number, sku in enumerate(["nut", "saw", "crane/2"] * 20)))
        assert len(kit.rows) == 40
        assert {letter.reason for letter in kit.rejected} == {
            "the price service knows no item 'saw'"
        }
        assert service.asked == {"nut": 1, "saw": 1, "crane/2": 1}


def test_an_order_waits_as_long_as_a_busy_service_asks() -> None:
    class Busy(PriceService):
        def answer(self, sku: str) -> tuple[int, dict[str, str], Any]:
            answer = super().answer(sku)
            return answer if self.asked[sku] > 1 else (503, {"Retry-After": "20"}, {})

    with Busy() as service, topology_test(priced(service.url)) as kit:
        kit.send(order(1))
        assert (kit.retrying, kit.rows) == (1, [])
        kit.advance(19.9)
        assert kit.retrying == 1
        kit.advance(0.2)
        assert [row["order_id"] for row in kit.rows] == [1]
        assert service.asked == {"nut": 2}


def test_a_service_that_does_not_answer_in_time_holds_no_order_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bolts, "CALL_SECONDS", 0.1)
    go = threading.Event()

    class Slow(PriceService):
        def answer(self, sku: str) -> tuple[int, dict[str, str], Any]:
            if sku == "bolt":
                go.wait(seconds(10))
            return super().answer(sku)

    with Slow() as service, topology_test(priced(service.url)) as kit:
        kit.send(order(1, "bolt"), order(2, "nut"))
        assert [row["sku"] for row in kit.rows] == ["nut"]
        assert kit.retrying == 1
        go.set()
        kit.advance(10)
        assert [row["sku"] for row in kit.rows] == ["nut", "bolt"]


def test_the_client_is_closed_with_the_bolt() -> None:
    topology = priced_by(lambda _request: httpx2.Response(200, json=NUT), workers=2)
    (add_price,) = [
        step.bolts[0] for step in topology.bolts() if isinstance(step.bolts[0], AddPrice)
    ]
    with topology_test(topology) as kit:
        kit.send(order(1))
        assert not add_price._client.is_closed
    assert add_price._client.is_closed


def test_the_example_runs_by_itself_and_asks_once_per_item() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.lookup"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds(60),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("990 priced, 10 dead-lettered\nthe service was asked 4 times")
