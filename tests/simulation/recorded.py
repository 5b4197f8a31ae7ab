"""What stands in a node of transactions, read by no code of the product."""

from typing import Any, NamedTuple


class Open(NamedTuple):
    """An open transaction, as it stands in a node."""

    txid: int
    attempt: int
    first: int
    end: int
    records: int | None  # None: it is only planned
    digest: str | None


class Recorded(NamedTuple):
    """A node's transactions, read by no code of the product."""

    kind: str
    committed: int
    open: tuple[Open, ...]


NOTHING = Recorded("", 0, ())


def look_at(found: Any) -> Recorded | None:
    """What a node's JSON says of transactions. Raises KeyError and TypeError."""
    if found is None:
        return None
    entries = [
        Open(
            each["txid"], each["attempt"], each["first"], each["end"],
            each.get("count"), each.get("digest"),
        )
        for each in found["open"]
    ]  # fmt: skip
    return Recorded(found["kind"], found["committed"], tuple(entries))
