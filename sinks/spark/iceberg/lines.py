"""A line's epoch and txid, as a property of an Iceberg table.

A property and not only an entry of the snapshot's summary, because snapshots expire.
"""

import re
from collections.abc import Mapping, Sequence

from topology.errors import SinkFailed
from topology.transactional import Committed

_VALUE = re.compile(r"(\d+):(\d+)", re.ASCII)


def property_of(pipeline: str, sink: str, line: str) -> str:
    """The name of a line's property: never of a process, or a successor would not find it.

    A pipeline's name has no "/", and neither has a line's, so no two lines share one.
    """
    return f"headrace/{pipeline}/{sink}/{line}"


def value_of(epoch: int, txid: int) -> str:
    """What the property says."""
    return f"{epoch}:{txid}"


def committed_of(
    lines: Sequence[str], names: Sequence[str], properties: Mapping[str, str]
) -> list[Committed]:
    """What is committed of each line; one without a property has nothing.

    Raises SinkFailed when a property is not of our making.
    """
    return [
        Committed(line, *_read(name, properties[name])) if name in properties else _nothing(line)
        for line, name in zip(lines, names, strict=True)
    ]


def _nothing(line: str) -> Committed:
    return Committed(line, 0, 0)


def _read(name: str, value: str) -> tuple[int, int]:
    found = _VALUE.fullmatch(value)
    if found is None:
        raise SinkFailed(f"table property '{name}': found {value!r}; allowed is <epoch>:<txid>")
    return int(found[1]), int(found[2])
