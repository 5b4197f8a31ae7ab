"""A job: one variant of one suite, to be run in a process of its own."""

from typing import Any

import msgspec

Figures = dict[str, Any]  # what a variant reports; numbers, but for what its suite knows of


class Job(msgspec.Struct, frozen=True):
    """What a variant is told. `module` has a table `VARIANTS` with the variant's name."""

    module: str
    variant: str
    kafka: str
    zookeeper: str
    topic: str
    records: int  # all that the topic holds
    pipeline: str  # unique, so no run finds another's offsets
    options: dict[str, float] = {}
    endpoint: str = ""  # of the object store that the table lies in; none: on a local disk
    profiled: bool = False
    together: bool = False  # whether all variants run in one process
