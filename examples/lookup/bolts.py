"""The steps an order passes: parse, then ask the price service."""

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote

import httpx2
import msgspec

from examples.lookup.rows import Item, Order, PricedOrder
from headrace import Bolt, Cache, Record, Reject, Retry, bolt

WORKERS = 50  # calls at once, and so many connections
CALL_SECONDS = 5.0  # for one request; the record's own time-out is longer
LONGEST_PAUSE_SECONDS = 300.0

_BUSY = (429, 503)
_decode_order = msgspec.json.Decoder(Order).decode
_decode_item = msgspec.json.Decoder(Item).decode


@bolt
def parse(record: Record) -> Order:
    """Read an order; what is none is rejected."""
    try:
        return _decode_order(record.value or b"")
    except msgspec.DecodeError as error:
        raise Reject(f"not an order: {error}") from error


class AddPrice(Bolt[Order, PricedOrder]):
    """Asks the price service for each order's item, or the cache if it was asked lately.

    An item that the service does not know is no matter of time, so its order is rejected; that
    it does not know it is kept too, but for a shorter while. All else that may pass (time-outs,
    5xx, 429) is tried again, after as long as the service asks for.
    """

    def __init__(self, url: str, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        """Only stores; a test gives a transport that answers by itself."""
        self._url = url
        self._transport = transport

    async def open(self) -> None:
        """Make the cache and the client, which belongs to the event loop that this runs on."""
        self.items: Cache[str, Item | None] = Cache(10_000, seconds=300, missing_seconds=30)
        self._opened = AsyncExitStack()
        client = httpx2.AsyncClient(
            base_url=self._url,
            timeout=httpx2.Timeout(CALL_SECONDS),
            limits=httpx2.Limits(max_connections=WORKERS, max_keepalive_connections=WORKERS),
            transport=self._transport,
        )
        self._client = await self._opened.enter_async_context(client)

    async def close(self) -> None:
        """Close the client, if it was opened."""
        await self._opened.aclose()

    async def process(self, order: Order, /) -> PricedOrder:
        """Name the item, and work the total out."""
        item = await self.items.get(order.sku, self._ask)
        if item is None:
            raise Reject(f"the price service knows no item {order.sku!r}")
        return {
            "order_id": order.order_id,
            "sku": order.sku,
            "name": item.name,
            "quantity": order.quantity,
            "total": round(order.quantity * item.price, 2),
        }

    async def _ask(self, sku: str) -> Item | None:
        try:
            answer = await self._client.get(f"/items/{quote(sku, safe='')}")
        except httpx2.TransportError as error:  # time-outs are among them
            raise Retry(f"the price service: {type(error).__name__} {error}") from error
        if answer.status_code == httpx2.codes.OK:
            return _item_in(answer.content)
        if answer.status_code == httpx2.codes.NOT_FOUND:
            return None
        reason = f"the price service answered {answer.status_code}"
        if answer.status_code in _BUSY:
            pause = pause_in(answer.headers.get("Retry-After"), datetime.now(UTC))
            raise Retry(reason, after_seconds=pause)
        if answer.is_server_error:
            raise Retry(reason)
        raise Reject(reason)


def pause_in(header: str | None, now: datetime) -> float | None:
    """The seconds that a Retry-After header asks for, at most five minutes; None without one.

    The header holds seconds or a date (RFC 9110, 10.2.3).
    """
    if header is None:
        return None
    try:
        seconds = float(header) if header.isdecimal() else _until(header, now)
    except ValueError:
        return None
    return min(max(seconds, 0.0), LONGEST_PAUSE_SECONDS)


def _until(date: str, now: datetime) -> float:
    then = parsedate_to_datetime(date)
    return (then.replace(tzinfo=then.tzinfo or UTC) - now).total_seconds()


def _item_in(content: bytes) -> Item:
    try:
        return _decode_item(content)
    except msgspec.DecodeError as error:  # the service's fault, not the order's
        raise Retry(f"the price service gave no item: {error}") from error
