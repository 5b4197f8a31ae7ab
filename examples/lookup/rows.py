"""The values that travel between the bolts, and the row that ends in the table."""

from typing import TypedDict

import msgspec


class Order(msgspec.Struct, frozen=True, gc=False):
    """One order as it comes from Kafka."""

    order_id: int
    sku: str
    quantity: int


class Item(msgspec.Struct, frozen=True, gc=False):
    """What the price service says about one item."""

    name: str
    price: float


class PricedOrder(TypedDict):
    """A row of the table."""

    order_id: int
    sku: str
    name: str
    quantity: int
    total: float
