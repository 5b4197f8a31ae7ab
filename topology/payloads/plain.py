"""Values that are bytes or text."""

import codecs

from topology.bolt import FunctionBolt
from topology.errors import InvalidTopology
from topology.payloads.limits import Limits
from topology.record import Record, Reject

DEFAULT = Limits()
NO_VALUE = "the record has no value"


def raw(*, limits: Limits = DEFAULT) -> FunctionBolt[Record, bytes]:
    """Make a bolt that gives a record's value as it is; only `max_bytes` of the limits applies.

    A record without a value, or with too large a one, is rejected.
    """

    def raw(record: Record) -> bytes:
        return value_of(record, limits)

    return FunctionBolt(raw)


def text(encoding: str = "utf-8", *, limits: Limits = DEFAULT) -> FunctionBolt[Record, str]:
    """Make a bolt that decodes a record's value; of the limits only `max_bytes` applies.

    A record without a value, with too large a one, or with one that is no such text, is
    rejected. Raises InvalidTopology if there is no such encoding.
    """
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise InvalidTopology(f"text({encoding!r}): Python knows no such encoding") from None

    def text(record: Record) -> str:
        value = value_of(record, limits)
        try:
            return value.decode(encoding)
        except UnicodeDecodeError as error:
            raise Reject(f"not {encoding} text: {error.reason} at byte {error.start}") from error

    return FunctionBolt(text)


def value_of(record: Record, limits: Limits) -> bytes:
    """Return a record's value. Raises Reject if there is none, or too large a one."""
    value = record.value
    if value is None:
        raise Reject(NO_VALUE)
    reason = limits.too_large(value)
    if reason is not None:
        raise Reject(reason)
    return value
