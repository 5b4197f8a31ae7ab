"""What stands at lines in the table `headrace_transactions`, within transactions."""

import json
from collections.abc import Sequence

from sinks.shares import check_fences
from sinks.spark.sql.connection import Connection
from sinks.spark.sql.postgres import LINES_TABLE, Statements
from topology.errors import SinkFailed
from topology.transactional import Committed, Fence, Share


class TransactionLines:
    """The lines of one sink of a pipeline."""

    def __init__(self, statements: Statements, pipeline: str, sink: str) -> None:
        self._statements = statements
        self._owner = (pipeline, sink)

    def found(
        self, connection: Connection, lines: Sequence[str], *, locked: bool
    ) -> list[Committed]:
        """What is committed of each line; locked, nobody else can change it meanwhile.

        Whoever changes a line has its lock until the transaction has ended, also if the client
        is gone, so a lock that was got says that no older transaction is under way.
        """
        if not lines:
            return []
        sql = self._statements.lines(locked=locked)
        text = connection.text(sql, *self._owner, json.dumps(lines))
        found = {line: (epoch, txid) for line, epoch, txid in json.loads(text or "[]")}
        return [Committed(line, *found.get(line, (0, 0))) for line in lines]

    def fence(self, connection: Connection, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs that are new, and say what is committed. Raises SinkFenced."""
        lines = [fence.line for fence in fences]
        if not lines:
            return []
        connection.execute(self._statements.begin_lines, *self._owner, json.dumps(lines))
        found = self.found(connection, lines, locked=True)
        check_fences(fences, found)
        raised = [
            line._replace(epoch=fence.epoch) for fence, line in zip(fences, found, strict=True)
        ]
        new = [each._asdict() for each in raised if each not in found]
        if new:
            connection.execute(self._statements.raise_epochs, json.dumps(new), *self._owner)
        return raised

    def move(self, connection: Connection, shares: Sequence[Share]) -> None:
        """Set each share's line to its epoch and txid; the lines are locked already.

        Raises SinkFailed when one is not there: someone has removed what was fenced.
        """
        moved = [
            {
                "line": share.line,
                "epoch": share.epoch,
                "txid": share.txid,
                "first": share.first,
                "end": share.end,
                "digest": share.digest,
            }
            for share in shares
        ]
        count = connection.execute(self._statements.move_lines, json.dumps(moved), *self._owner)
        if count != len(shares):
            raise SinkFailed(f"{LINES_TABLE} has no row of a line that is to be committed")
