"""Which rows have to be tried before they are staged, and when. Any thread."""

import threading
from collections.abc import Collection

from sinks.spark.sql.examiner import Way
from sinks.spark.sql.load import Load
from topology.transactional import Group

_PATIENCE_SECONDS = 5.0
_LONG_BYTES = 2_000  # an index of PostgreSQL's takes values up to about 2,700


class Trials:
    """What was tried and is not in the table yet; and lines whose first commit is to come.

    What of a line is staged first after a fence may be what ended the process before: a row that
    was refused when it was committed. So it is tried, if it is not its first attempt.
    """

    def __init__(self) -> None:
        self._tried: set[Load] = set()
        self._unproven: set[str] = set()
        self._settled = threading.Condition()

    def fenced(self, lines: Collection[str]) -> None:
        """Learn that lines have a new owner."""
        with self._settled:
            self._unproven.update(lines)

    def is_needed(self, way: Way, group: Group, load: Load) -> bool:
        """Whether the database must be asked if it takes a group's rows."""
        with self._settled:
            again = any(
                share.attempt > 1 and share.line in self._unproven for share in group.shares
            )
        is_long = load.longest_indexed > _LONG_BYTES
        return load.num_rows > 0 and (again or is_long or way.trial_reason is not None)

    def wait(self) -> None:
        """Wait, not for ever, until what was tried before is in the table.

        A key that comes again in the next group is found only there.
        """
        with self._settled:
            self._settled.wait_for(lambda: not self._tried, _PATIENCE_SECONDS)

    def passed(self, load: Load) -> None:
        """Learn that rows were tried; `settled` is to come."""
        with self._settled:
            self._tried.add(load)

    def settled(self, load: Load, committed: Collection[str] = ()) -> None:
        """Learn that rows are `committed`, of these lines, or will not be."""
        with self._settled:
            self._tried.discard(load)
            self._unproven.difference_update(committed)
            self._settled.notify_all()
