import asyncio
import threading
from datetime import UTC, datetime

import httpx2
import orjson
import pytest

from examples.lookup import bolts
from examples.lookup.bolts import AddPrice, parse, pause_in
from examples.lookup.pipeline import priced
from examples.lookup.prices import PriceService
from examples.lookup.rows import Order
from headrace import Record, Reject, Retry
from headrace.testing import topology_test
from tests.support.patience import seconds
from tests.support.pipeline import piped

NUT = {"name": "Nut M8", "price": 0.1}
ORDER = Order(7, "nut", 3)


def order(number, sku="nut"):
    return orjson.dumps({"order_id": number, "sku": sku, "quantity": 2})


def answered(handler):
    bolt = AddPrice("http://prices", transport=httpx2.MockTransport(handler))

    async def answer():
        await bolt.open()
        try:
            return await bolt.process(ORDER)
        finally:
            await bolt.close()

    return asyncio.run(answer())


def priced_at(request):
    assert str(request.url) == "http://prices/items/nut"
    return httpx2.Response(200, json=NUT)


def test_an_order_gets_its_item_s_name_and_total():
    assert parse(Record(b'{"order_id": 7, "sku": "nut", "quantity": 3}', None)) == ORDER
    assert answered(priced_at) == {
        "order_id": 7, "sku": "nut", "name": "Nut M8", "quantity": 3, "total": 0.3,
    }  # fmt: skip


@pytest.mark.parametrize("value", [None, b"", b"{", b'{"order_id": "x", "sku": "nut"}'])
def test_what_is_no_order_is_rejected(value):
    with pytest.raises(Reject, match="not an order"):
        parse(Record(value, None))


@pytest.mark.parametrize(
    ("response", "error", "reason", "after_seconds"),
    [
        (httpx2.Response(404), Reject, "knows no item 'nut'", None),
        (httpx2.Response(400), Reject, "answered 400", None),
        (httpx2.Response(503), Retry, "answered 503", None),
        (httpx2.Response(503, headers={"Retry-After": "7"}), Retry, "answered 503", 7.0),
        (httpx2.Response(429, headers={"Retry-After": "9999"}), Retry, "answered 429", 300.0),
        (httpx2.Response(200, content=b"<html>"), Retry, "gave no item", None),
        (httpx2.ConnectError("refused"), Retry, "ConnectError refused", None),
    ],
)
def test_answer_without_a_price_rejects_or_retries(response, error, reason, after_seconds):
    def handler(_request):
        if isinstance(response, Exception):
            raise response
        return response

    with pytest.raises(error, match=reason) as caught:
        answered(handler)
    assert getattr(caught.value, "after_seconds", None) == after_seconds


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
def test_the_pause_that_a_service_asks_for_is_seconds_or_a_date(header, seconds):
    assert pause_in(header, datetime(2026, 11, 21, 12, tzinfo=UTC)) == seconds


def test_each_item_is_asked_for_once():
    with PriceService() as service, topology_test(priced(service.url)) as kit:
        kit.send(*(order(number, sku) for number, sku in enumerate(["nut", "saw", "crane/2"] * 20)))
        assert len(kit.rows) == 40
        reasons = {letter.reason for letter in kit.rejected}
        assert reasons == {"the price service knows no item 'saw'"}
        assert service.asked == {"nut": 1, "saw": 1, "crane/2": 1}


def test_an_order_waits_as_long_as_a_busy_service_asks():
    class Busy(PriceService):
        def answer(self, sku):
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


def test_a_service_that_does_not_answer_in_time_holds_no_order_up(monkeypatch):
    monkeypatch.setattr(bolts, "CALL_SECONDS", 0.1)
    go = threading.Event()

    class Slow(PriceService):
        def answer(self, sku):
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


def test_the_client_is_closed_with_the_bolt():
    add_price = AddPrice("http://prices", transport=httpx2.MockTransport(priced_at))
    with topology_test(piped(add_price, first=parse, workers=2)) as kit:
        kit.send(order(1))
        assert not add_price._client.is_closed
    assert add_price._client.is_closed
