"""Few large files in place of many small ones, without Spark."""

import posixpath
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sinks.files.data_file import DataFile, DataFileWriter
from sinks.files.small import cut, is_small
from sinks.spark.delta.actions import ActiveFile
from sinks.spark.delta.kernel import DeltaLog
from sinks.spark.delta.reading import FileReader
from sinks.spark.delta.way import Way
from sinks.spark.local_table import LocalTable
from topology.compaction import Compaction
from topology.errors import SinkBusy, SinkFailed

_MOST_ROUNDS = 3
_BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Joined:
    """Files, and the one that has all their rows; None if they have none."""

    sources: Sequence[ActiveFile]
    file: DataFile | None


def to_join(active: Iterable[ActiveFile], target_bytes: int) -> list[list[ActiveFile]]:
    """Which files to join, each list into one of at most about the target.

    Files of one folder and partition only. Pure.
    """
    places: defaultdict[object, list[ActiveFile]] = defaultdict(list)
    for file in active:
        if is_small(file, target_bytes) and not file.has_deletions:
            place = (posixpath.dirname(file.place), tuple(sorted(file.partition.items())))
            places[place].append(file)
    return [files for place in places.values() for files in cut(place, target_bytes)]


def join(
    lists: Iterable[list[ActiveFile]], reader: FileReader, writer: DataFileWriter
) -> list[Joined]:
    """Write the joined files; nobody sees them yet.

    Raises OSError, and SinkFailed when a file cannot be read; then no file is left.
    """
    done: list[Joined] = []
    try:
        for files in lists:
            folder = posixpath.dirname(files[0].place)
            file = writer.join(map(reader.read, files), 0, folder, dict(files[0].partition))
            done.append(Joined(files, file))
    except BaseException:
        writer.remove(files_of(done))
        raise
    return done


def files_of(joined: Iterable[Joined]) -> list[DataFile]:
    """The files that were written."""
    return [each.file for each in joined if each.file is not None]


class Compactor:
    """Compacts one table, beside whoever else writes it."""

    def __init__(
        self, table: LocalTable[DeltaLog], examine: Callable[[DeltaLog], Way | None], name: str
    ) -> None:
        self._table = table
        self._examine = examine
        self._name = name

    def compact(self, target_bytes: int) -> Compaction:
        """See the protocol. Files are written without the lock; only the commit takes it."""
        for _ in range(_MOST_ROUNDS):
            way, active = self._table.run(self._look, "compact")
            if way is None:
                break
            if way.obstacle is not None:
                reason = f"{way.obstacle}; OPTIMIZE in Spark can do it"
                raise SinkFailed(f"table '{self._name}' cannot be compacted: {reason}")
            lists = to_join(active, target_bytes)
            if not lists:
                break
            joined = join(lists, FileReader(self._table.folder, way.facts), way.files)
            landed = self._landed(way, joined)
            way.files.remove(files_of(each for each in joined if each not in landed))
            if landed:
                files = files_of(landed)
                sources = sum(len(each.sources) for each in landed)
                return Compaction(sources, len(files), sum(file.num_bytes for file in files))
        else:
            raise SinkBusy(_BUSY_SECONDS, f"others keep changing the files of '{self._name}'")
        return Compaction(0, 0, 0)

    def _look(self, log: DeltaLog) -> tuple[Way | None, list[ActiveFile]]:
        log.forget()
        way = self._examine(log)
        return way, [] if way is None else list(log.files().values())

    def _landed(self, way: Way, joined: Sequence[Joined]) -> list[Joined]:
        """Commit what is still right; nothing if the table itself has changed."""

        def swap(log: DeltaLog) -> list[Joined]:
            now = self._examine(log)
            if now is None or now.facts is not way.facts:
                return []
            active = log.files()
            right = [each for each in joined if all(_is_there(active, s) for s in each.sources)]
            if right:
                gone = [source for each in right for source in each.sources]
                log.commit(files_of(right), {}, gone, data_change=False)
            return right

        try:
            return self._table.settle(swap, "compact")
        except SinkBusy:  # anything else may have landed
            way.files.remove(files_of(joined))
            raise


def _is_there(active: Mapping[str, ActiveFile], file: ActiveFile) -> bool:
    found = active.get(file.path)
    return found is not None and not found.has_deletions
