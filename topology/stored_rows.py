"""The stored rows behind a state's look-ups, kept current by what its own run commits."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from topology.places import Column, Places


class StoredRows:
    """The rows of one load, one per key and line, and what was committed since it began.

    `news` is filled by the thread that commits: rows as they stand now, in the commits' order.
    The rest is for one thread at a time.
    """

    def __init__(
        self, rows: pa.Table, news: deque[pa.Table], key: Sequence[str], row_key: Sequence[str]
    ) -> None:
        """`key` tells a key, `row_key` a row: columns of all these tables."""
        self.news = news
        self._rows = rows
        self._key = key
        self._row_key = row_key

    def take_news(self) -> pa.Table | None:
        """Put the news in place; all rows of the keys that they are of, None if there are none.

        Costs about 0.1 µs for each row that is stored.
        """
        changed: pa.Table | None = None
        while self.news:
            newest = self.news.popleft()
            changed = newest if changed is None else _replaced(changed, newest, self._row_key)
        if changed is None:
            return None
        is_other = pc.is_null(_places(self._rows, changed, self._key))
        same = self._rows.filter(pc.invert(is_other))
        now = _replaced(same, changed, self._row_key)
        self._rows = pa.concat_tables([self._rows.filter(is_other), now]).combine_chunks()
        return now


def _replaced(rows: pa.Table, newer: pa.Table, names: Sequence[str]) -> pa.Table:
    """Rows, and in the place of those that have the same key, newer ones."""
    kept = rows.filter(pc.is_null(_places(rows, newer, names)))
    return pa.concat_tables([kept, newer])


def _places(rows: pa.Table, among: pa.Table, names: Sequence[str]) -> Column:
    """Where the key of each row stands in the other table; null: nowhere."""
    keys = among.select(list(names)).group_by(list(names), use_threads=False).aggregate([])
    return Places(_arrays(keys, names)).of(_arrays(rows, names))


def _arrays(table: pa.Table, names: Sequence[str]) -> list[Any]:
    return [table[name].combine_chunks() for name in names]
