"""Faults in what the spark engine's driver stages: spooled rows, refused rows (3, 13, 14).

They are looked for in the seeds whose worlds run on that engine.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from service.spark_engine import range_buffer, staging, task
from service.spark_engine.attempts import Attempt, Attempts
from service.spark_engine.range_buffer import RangeBuffer, RangeWork, RowSource, StagedLost
from service.spark_engine.staging import TaskSink
from service.spark_engine.task import EVERY_ROW, RowFileStager
from tests.simulation.mutants import Patches, around, mutant, put
from topology.sink import Batch, Staged
from transactions.groups import TransactionGroups

# Files


@mutant
def spool_of_an_older_try() -> Patches:
    """Tries of a group write the same files: a late one changes those of the next, unnoticed."""

    class Named:
        def __init__(self, name: str) -> None:
            self.hex = name

    def stage(original: Callable[..., Staged], stager: RowFileStager, group: Batch) -> Staged:
        shares = [(share.line, share.num_rows) for share in group.shares]
        name = hashlib.md5(f"{group.sequence} {shares}".encode()).hexdigest()  # noqa: S324
        with put(task.uuid, "uuid4", lambda: Named(name)):
            return original(stager, group)

    def begin(
        original: Callable[..., RangeWork], buffer: RangeBuffer, folder: str | None
    ) -> RangeWork:
        with put(task.uuid, "uuid4", lambda: Named(buffer.name)):
            return original(buffer, folder)

    return [
        around(RowFileStager, "stage", stage),
        around(RangeBuffer, "begin", begin),
        put(task, "digest_of", lambda _data: b""),
        put(RangeWork, "discard", _stays),
    ]


@mutant
def spool_of_another_sink() -> Patches:
    """What tasks have spooled for one sink is staged by another."""

    def of_first(original: Callable[..., None], attempts: Attempts, attempt: Attempt) -> None:
        spooled = [work for work in attempt.works.values() if not work.is_apart]
        for work in spooled:
            work.stager, work.made = spooled[0].stager, spooled[0].made
        original(attempts, attempt)

    return [around(Attempts, "_seal", of_first), put(RangeWork, "discard", _stays)]


@mutant
def lost_spool_is_empty() -> Patches:
    """Files that are not there any more are taken for no rows."""

    def whole(original: Callable[..., Batch], group: Batch, made: tuple[Staged, ...]) -> Batch:
        try:
            return original(group, made)
        except StagedLost:
            shares = tuple(replace(share, num_rows=0) for share in group.shares)
            return replace(group, shares=shares, pieces=[], num_rows=0, offsets=np.empty(0, int))

    def stage(original: Callable[..., Staged], work: RangeWork, sink: Any, group: Batch) -> Staged:
        return replace(original(work, sink, group), shares=group.shares)

    return [around(range_buffer, "_whole", whole), around(RangeWork, "stage", stage)]


@mutant
def spooled_rows_in_the_order_of_tasks() -> Patches:
    """Rows are cut into shares as they come, whichever line they are of."""

    def whole(_original: Callable[..., Batch], group: Batch, made: tuple[Staged, ...]) -> Batch:
        read = [rows for each in made for rows in task.read_rows(each)]
        pieces = [piece for _line, its_pieces, _offsets in read for piece in its_pieces]
        offsets = np.concatenate([np.empty(0, np.int64), *(offsets for _, _, offsets in read)])
        return replace(group, pieces=pieces, offsets=offsets)

    return [around(range_buffer, "_whole", whole)]


def _stays(_work: RangeWork) -> None:
    """No file is removed, as another try or sink is to find it."""


# Rows that are refused


@mutant
def refused_row_without_a_letter() -> Patches:
    """A row that the driver's sink refuses is left out, and that is all."""

    def stage(original: Callable[..., Staged], work: RangeWork, sink: Any, group: Batch) -> Staged:
        return replace(original(work, sink, group), rejected={})

    return [around(RangeWork, "stage", stage)]


@mutant
def refusal_of_another_record() -> Patches:
    """The record after the refused row's own gets the letter."""

    def origin(original: Callable[..., RowSource], group: Batch, row: int) -> RowSource:
        found = original(group, row)
        return found._replace(offset=found.offset + 1)

    return [around(range_buffer, "source_of", origin)]


@mutant
def refusal_of_every_row_of_the_record() -> Patches:
    """Of a record of which one row is refused, none is left."""
    return [put(staging, "reason_of", lambda reasons, _place: next(iter(reasons.values())))]


@mutant
def refusal_of_another_row_of_the_record() -> Patches:
    """The row before the refused one is left out, and then all are, as it is refused again."""

    def origin(original: Callable[..., RowSource], group: Batch, row: int) -> RowSource:
        found = original(group, row)
        return found._replace(row=max(0, found.row - 1))

    return [around(range_buffer, "source_of", origin)]


@mutant
def refusal_in_every_sink() -> Patches:
    """A record that one sink refuses is left out of all of them."""

    def refuse(
        original: Callable[..., None], groups: TransactionGroups, number: int, by: Any
    ) -> None:
        sinks = ["table-0", "table-1"]
        everywhere = {
            place: {offset: {sink: {EVERY_ROW: "unfit"} for sink in sinks} for offset in offsets}
            for place, offsets in by.items()
        }
        original(groups, number, everywhere)

    return [around(TransactionGroups, "refuse", refuse)]


@mutant
def refused_rows_are_only_left_out() -> Patches:
    """A task leaves refused rows out, and sends no letter of them."""

    def stage(original: Callable[..., Any], sink: TaskSink, *section: Any) -> dict[int, str]:
        original(sink, *section)
        return {}

    return [around(TaskSink, "stage", stage)]


@mutant
def refused_group_is_committed() -> Patches:
    """A group of which a sink has refused rows is committed as it is, and not run again."""

    def reject(attempts: Attempts, _attempt: Attempt, work: RangeWork, *_told: Any) -> None:
        attempts._buffers[work.sink].rows_rejected += 1

    return [put(Attempts, "_reject", reject)]
