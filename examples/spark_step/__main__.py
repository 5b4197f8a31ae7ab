"""Try it: orders of a shop and a table of its customers, through a Kafka of its own.

python -m examples.spark_step [--state-dir DIR]
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from examples.running import Message, Outcome, Surroundings, arguments, run_example
from examples.spark_step.pipeline import billing
from service.config.settings import load
from service.wiring import spark_of

ORDERS = 6_000
CUSTOMERS = 1_000
UNKNOWN = 13  # customers whose number ends so are in no table
COUNTRIES = ("NL", "DE", "LU", "CH")


def main() -> int:
    """Run it, and return the exit code."""
    options = arguments("spark_step", __doc__).parse_args()
    spark = spark_of(billing(""), load(None))
    return run_example("spark_step", options.state_dir, _run, spark=spark)


def orders() -> Iterator[Message]:
    """The same orders in each run; one in a thousand is torn."""
    for number in range(ORDERS):
        customer = number * 7 % CUSTOMERS
        order = orjson.dumps({"id": number, "customer": customer, "cents": number % 500 * 100})
        yield str(customer), order[:-1] if number % 1_000 == 999 else order  # noqa: PLR2004


def customers() -> pa.Table:
    """The table of customers; some who order are not in it."""
    known = [number for number in range(CUSTOMERS) if number % 100 != UNKNOWN]
    countries = [COUNTRIES[number % len(COUNTRIES)] for number in known]
    return pa.table({"customer": known, "country": countries})


def _run(here: Surroundings) -> Outcome:
    table: Path = here.warehouse / "customers"
    table.mkdir(parents=True)
    pq.write_table(customers(), table / "customers.parquet")
    here.publish("orders", orders())
    account = here.run(billing(str(table)))
    rows = sum(pq.read_metadata(file).num_rows for file in here.warehouse.glob("bills/*.parquet"))
    gaps = []
    if rows != account.rows:
        gaps.append(f"the account has {account.rows} rows, the files {rows}")
    return Outcome(account, gaps, [f"{rows} bills of {account.read} orders"])


if __name__ == "__main__":
    sys.exit(main())
