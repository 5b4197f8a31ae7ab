"""Try it: a thousand orders through the test kit, with a price service on this machine.

python -m examples.lookup
"""

import sys

import orjson

from examples.lookup.pipeline import priced
from examples.lookup.prices import ITEMS, PriceService
from headrace.testing import topology_test
from service.observability import logs

ORDERS = 1_000
UNKNOWN_EVERY = 100


def main() -> int:
    """Send the orders, and print what became of them and what the service was asked."""
    logs.configure("warning", "console")
    skus = [*ITEMS]
    with PriceService() as service, topology_test(priced(service.url)) as kit:
        kit.send(*(order(number, skus) for number in range(ORDERS)))
        print(f"{len(kit.rows)} priced, {len(kit.rejected)} dead-lettered")
        print(f"the service was asked {service.asked.total()} times: {dict(service.asked)}")
    return 0


def order(number: int, skus: list[str]) -> bytes:
    """An order; one in a hundred is for an item that nobody knows."""
    sku = "saw" if number % UNKNOWN_EVERY == 0 else skus[number % len(skus)]
    return orjson.dumps({"order_id": number, "sku": sku, "quantity": number % 7 + 1})


if __name__ == "__main__":
    sys.exit(main())
