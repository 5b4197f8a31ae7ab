"""Which files are a table now, for whoever reads it."""

import os

from sinks.manifest.entry import FOLDER
from sinks.manifest.log import ManifestLog
from sinks.paths import local_path
from topology.errors import SinkFailed


def manifest_files(path: str | os.PathLike[str]) -> list[str]:
    """The files that make up the table of a ManifestSink in this folder, as absolute paths.

    They are those of one version: all rows of each commit, or none. They stay readable for the
    sink's `keep_seconds`, also when they are no part of the table any more. Raises SinkFailed
    when there is no such table, or an entry of its log is not what was written.
    """
    folder = local_path(os.fspath(path))
    state = None if folder is None else ManifestLog(folder).refresh()
    if folder is None or state is None:
        raise SinkFailed(f"{path} is no table of a ManifestSink: that is a local folder with "
                         f"a log in {FOLDER}")  # fmt: skip
    return [str(folder / file) for file in state.files]
