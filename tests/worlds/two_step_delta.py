"""A control: a Delta sink whose rows and txids are not in one commit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from sinks import DeltaSink
from sinks.tables.log import TableState
from topology.sink import Row


def _nothing(_point: str) -> None:
    """Pass by."""


class TwoStepDeltaSink(DeltaSink[Row]):
    """Commits the rows with no txid, and the txids after them: at least once, not exactly.

    A test that counts duplicates under kills must find some here, or it proves nothing.
    `at` is told "between_rows_and_txids" each time, for a test that ends the process there.
    """

    at: ClassVar[Callable[[str], object]] = staticmethod(_nothing)

    def _land(
        self, state: TableState, parts: Sequence[Any], transactions: Mapping[str, int]
    ) -> None:
        if parts:
            super()._land(state, parts, {})
        type(self).at("between_rows_and_txids")
        self._settle(lambda now: self._commit(now, (), transactions))
