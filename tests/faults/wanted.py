"""What must come of the records of `topologies.py`."""

_EVERY, _REFUSED = 10, 7


def is_refused(offset: int) -> bool:
    """Whether a record has no row, but a dead letter."""
    return offset % _EVERY == _REFUSED
