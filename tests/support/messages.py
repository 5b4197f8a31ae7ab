from typing import Any

import numpy as np
from confluent_kafka import Message

from partition.records import Partition


def message(partition: Partition, offset: int, value: bytes | None, **more: Any) -> Message:
    more = {"timestamp": (1, 0), "leader_epoch": 0, **more}
    return Message(*partition, offset=offset, value=value, **more)


def offsets(*numbers: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.array(numbers, np.int64)
