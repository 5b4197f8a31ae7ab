"""The orders are what the suites and their readers take them for."""

import orjson
import pytest

from benchmarks.orders import LEAST_TOTAL, ORDER_BYTES, USERS, Orders, users


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


def test_two_makers_of_orders_make_the_same():
    assert Orders().value(12_345) == Orders().value(12_345)


def test_an_order_may_say_when_it_was_made():
    orders = Orders()
    value = orders.value(7, made_at=1_763_999_999_999)
    assert len(value) == ORDER_BYTES
    assert orjson.loads(value) == orjson.loads(orders.value(7)) | {"ts": 1_763_999_999_999}


def test_an_order_that_would_be_longer_is_refused():
    with pytest.raises(ValueError, match="seven digits"):
        Orders().value(9_000_000)
