"""In which order a step's calls run."""

from enum import Enum


class Order(Enum):
    """What the calls of a step keep to."""

    NONE = "none"  # whatever is ready first
    KEY = "key"  # one at a time per key, in the order of arrival
    PARTITION = "partition"  # one at a time per partition, in the order of arrival
