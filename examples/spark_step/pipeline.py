"""Orders from Kafka, billed by Spark with a table of customers, into a Delta table, exactly once.

CUSTOMERS=/lake/customers headrace run examples.spark_step.pipeline:topology --config service.toml
"""

import os
from decimal import Decimal
from typing import TYPE_CHECKING, TypedDict

import msgspec

from headrace import Topology
from headrace.payloads import json
from headrace.sinks import DeltaSink, KafkaDeadLetters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Order(msgspec.Struct, frozen=True, gc=False):
    """An order as the shop tells of it; what goes into Spark."""

    id: int
    customer: int
    cents: int


class Bill(TypedDict):
    """A row of the table `bills`; what comes out."""

    id: int
    customer: int
    country: str
    cents: int
    tax: Decimal


def billed(orders: "DataFrame", customers: str) -> "DataFrame":
    """Bill the orders of customers that are known, with the tax of their country."""
    session = orders.sparkSession
    taxes = session.sql("VALUES ('NL', 21), ('DE', 19), ('LU', 17) AS taxes(country, rate)")
    return (
        orders.join(session.read.parquet(customers), "customer")
        .join(taxes, "country", "left")
        .selectExpr(
            "id",
            "customer",
            "country",
            "cents",
            "CAST(cents * coalesce(rate, 0) / 10000 AS decimal(38, 18)) AS tax",
        )
    )


def billing(customers: str) -> Topology:
    """The topology, with the place of the table of customers."""
    topology = Topology("billing", reliability="exactly-once")
    orders = topology.source("orders").then(json(Order))
    bills = orders.spark(lambda frame: billed(frame, customers), schema=Order, name="billed")
    bills.into(DeltaSink("bills", schema=Bill), name="bills")
    topology.dead_letters.into(KafkaDeadLetters("orders.dead"))
    return topology


topology = billing(os.environ.get("CUSTOMERS", "customers"))
