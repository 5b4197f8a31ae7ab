"""A control: a Delta sink whose rows and txids are not in one commit."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from sinks import DeltaSink
from sinks.files.data_file import DataFile
from sinks.spark.delta.actions import ActiveFile
from sinks.spark.delta.kernel import DeltaLog
from topology.sink import Row


def _nothing(_point: str) -> None:
    """Pass by."""


class TwoStepDeltaSink(DeltaSink[Row]):
    """Commits the rows with no txid, and the txids after them: at least once, not exactly.

    A test that counts duplicates under kills must find some here, or it proves nothing.
    `at` is told "between_rows_and_txids" each time, for a test that ends the process there.
    """

    at: ClassVar[Callable[[str], object]] = staticmethod(_nothing)

    def _add(
        self,
        table: DeltaLog,
        files: Sequence[DataFile],
        versions: Mapping[str, int],
        removed: Sequence[ActiveFile] = (),
    ) -> None:
        if files or removed:
            super()._add(table, files, {}, removed)
        type(self).at("between_rows_and_txids")
        if versions:
            super()._add(table, [], versions)
