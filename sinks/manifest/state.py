"""A table as its manifest log has it: what all entries up to one version come to. Pure."""

from dataclasses import dataclass
from typing import Self

from sinks.manifest.entry import Column, Entry, InvalidEntry, Line, Listed, Whole


@dataclass(slots=True)
class State:
    """The table at a version. `apply` changes it in place."""

    version: int
    table: str
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...]
    files: dict[str, Listed]  # by path, in the order they came
    lines: dict[str, Line]
    removed: dict[str, int]  # files that are to be deleted: since when (ms)

    @classmethod
    def of(cls, whole: Whole, version: int) -> Self:
        """The table that an entry tells as a whole."""
        return cls(
            version=version,
            table=whole.table,
            columns=whole.columns,
            partition_by=whole.partition_by,
            files={file.path: file for file in whole.files},
            lines=dict(whole.lines),
            removed=dict(whole.removed),
        )

    def apply(self, entry: Entry) -> None:
        """Go on by one version. Raises InvalidEntry when the entry does not follow this one."""
        if entry.version != self.version + 1:
            raise InvalidEntry(f"entry {entry.version} does not follow {self.version}")
        self.version = entry.version
        for path in entry.remove:
            self.files.pop(path, None)
            self.removed[path] = entry.made_ms
        for path in entry.forget:
            self.removed.pop(path, None)
        self.files.update((file.path, file) for file in entry.add)
        self.lines.update(entry.lines)
        if entry.columns is not None:
            self.columns = entry.columns

    def after(self, entry: Entry) -> Self:
        """The table once an entry is in force; this one stays as it is."""
        state = type(self).of(self.whole(), self.version)
        state.apply(entry)
        return state

    def whole(self) -> Whole:
        """The table as an entry tells it."""
        return Whole(
            table=self.table,
            columns=self.columns,
            partition_by=self.partition_by,
            files=tuple(self.files.values()),
            lines=self.lines,
            removed=self.removed,
        )
